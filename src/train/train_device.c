/* train/device: the CPU. */
#include <config.h>

#include "train/device.h"

az_err az_device_open(az_device *device, const az_deck *deck, az_comm *comm)
{
    (void)deck;
    device->dev = az_dev_get_cpu();
    return az_comm_agree(comm, az_kern_open(&device->kern, device->dev, AZ_F32));
}

void az_device_close(az_device *device)
{
    az_kern_close(&device->kern);
    az_dev_close(device->dev);
    *device = (az_device){0};
}
