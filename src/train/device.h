/* train/device: what a rank computes on. */
#ifndef AZ_TRAIN_DEVICE_H
#define AZ_TRAIN_DEVICE_H

#include "comm/comm.h"
#include "comm/fabric.h"
#include "deck/deck.h"
#include "dev/dev.h"
#include "kern/kern.h"

typedef struct {
    az_dev *dev;
    az_kern kern;
    az_fabric *fabric; /* of GPUs; NULL on the CPU */
} az_device;

/* The device that the deck asks for, with its operations. Start from {0}. Collective. */
az_err az_device_open(az_device *device, const az_deck *deck, az_comm *comm);
void az_device_close(az_device *device);

#endif
