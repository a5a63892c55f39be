/* dev: a GPU, through the CUDA runtime. */
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "dev/backend.h"

namespace {

struct Device {
    const az_backend_host *host;
    cudaStream_t streams[AZ_N_QUEUES];
    uint32_t *marks; /* [AZ_N_QUEUES], host memory that the device writes */
};

Device *device_of(void *self)
{
    return static_cast<Device *>(self);
}

/* The failure in text; 0 if there is none. It is cleared, or the next launch would find it. */
int describe_error(cudaError_t e, char *text, size_t size)
{
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    snprintf(text, size, "%s", cudaGetErrorString(e));
    return -1;
}

/* Queued work may not fail. */
void check(Device *d, cudaError_t e, const char *operation)
{
    if (e != cudaSuccess)
        d->host->fail(d->host->context, operation, cudaGetErrorString(e));
}

/* None, or one that is too old, in words: the driver's own do not tell them apart. */
int describe_driver(char *text, size_t size)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        snprintf(text, size, "no driver of NVIDIA's is loaded");
    else
        snprintf(text, size, "the driver is for CUDA up to %d.%d, but the backend needs %d.%d",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return -1;
}

int count(int *out_n, char *text, size_t size)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    *out_n = e == cudaSuccess ? n : 0;
    if (e == cudaSuccess && n == 0)
        snprintf(text, size, "the driver shows this process no GPU");
    if (e == cudaErrorInsufficientDriver)
        return describe_driver(text, size);
    return e == cudaErrorNoDevice ? describe_error(e, text, size), 0
                                  : describe_error(e, text, size);
}

int describe(int index, az_gpu_info *out, char *text, size_t size)
{
    cudaDeviceProp p;
    if (describe_error(cudaGetDeviceProperties(&p, index), text, size) != 0)
        return -1;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    const unsigned char *u = reinterpret_cast<const unsigned char *>(p.uuid.bytes);
    snprintf(out->uuid, sizeof out->uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", p.pciDomainID, p.pciBusID,
             p.pciDeviceID);
    out->major = p.major;
    out->minor = p.minor;
    out->n_sm = p.multiProcessorCount;
    out->total_bytes = p.totalGlobalMem;
    return 0;
}

void get_versions(char *text, size_t size)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, size, "CUDA runtime %d.%d, driver for %d.%d", runtime / 1000,
             runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
}

void close_device(void *self)
{
    Device *d = device_of(self);
    for (cudaStream_t stream : d->streams)
        if (stream != nullptr)
            cudaStreamDestroy(stream);
    if (d->marks != nullptr)
        cudaFreeHost(d->marks);
    delete d;
}

/* Bringing units goes before computing where both could begin. */
cudaError_t create(Device *d, int index)
{
    int least = 0, greatest = 0;
    cudaError_t e = cudaSetDevice(index);
    if (e == cudaSuccess)
        e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int q = 0; q < AZ_N_QUEUES && e == cudaSuccess; q++)
        e = cudaStreamCreateWithPriority(&d->streams[q], cudaStreamNonBlocking,
                                         q == AZ_QUEUE_COMPUTE ? least : greatest);
    if (e == cudaSuccess)
        e = cudaHostAlloc(&d->marks, AZ_N_QUEUES * sizeof *d->marks, cudaHostAllocMapped);
    if (e == cudaSuccess)
        memset(d->marks, 0, AZ_N_QUEUES * sizeof *d->marks);
    return e;
}

int open_device(void **out_self, int index, const az_backend_host *host, char *text, size_t size)
{
    Device *d = new Device();
    d->host = host;
    *out_self = nullptr;
    if (describe_error(create(d, index), text, size) != 0) {
        close_device(d);
        return -1;
    }
    *out_self = d;
    return 0;
}

/* ---- memory ---- */

int alloc_device(void *, void **out, size_t bytes, char *text, size_t size)
{
    return describe_error(cudaMalloc(out, bytes), text, size);
}

void free_device(void *self, void *p)
{
    check(device_of(self), cudaFree(p), "freeing memory");
}

int alloc_host(void *, void **out, size_t bytes, char *text, size_t size)
{
    return describe_error(cudaHostAlloc(out, bytes, cudaHostAllocDefault), text, size);
}

void free_host(void *self, void *p)
{
    check(device_of(self), cudaFreeHost(p), "freeing pinned memory");
}

int pin(void *, void *p, size_t bytes, char *text, size_t size)
{
    return describe_error(cudaHostRegister(p, bytes, cudaHostRegisterDefault), text, size);
}

void unpin(void *self, void *p)
{
    check(device_of(self), cudaHostUnregister(p), "unpinning memory");
}

int get_free(void *, size_t *out_free, size_t *out_total, char *text, size_t size)
{
    return describe_error(cudaMemGetInfo(out_free, out_total), text, size);
}

int can_reach(void *, int index)
{
    int mine = 0, can = 0;
    if (cudaGetDevice(&mine) != cudaSuccess ||
        cudaDeviceCanAccessPeer(&can, mine, index) != cudaSuccess)
        return 0;
    return can;
}

/* ---- queued work ---- */

void note(Device *d, az_queue queue, const char *operation)
{
    d->host->note(d->host->context, queue, operation);
}

void copy(void *self, az_queue queue, void *dst, const void *src, size_t bytes, az_copy_kind kind)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                           cudaMemcpyDeviceToDevice};
    static const char *const names[] = {"copy in", "copy out", "copy"};
    Device *d = device_of(self);
    note(d, queue, names[kind]);
    check(d, cudaMemcpyAsync(dst, src, bytes, kinds[kind], d->streams[queue]), names[kind]);
}

void fill(void *self, az_queue queue, void *dst, int byte, size_t bytes)
{
    Device *d = device_of(self);
    note(d, queue, "fill");
    check(d, cudaMemsetAsync(dst, byte, bytes, d->streams[queue]), "fill");
}

__global__ void set_mark(uint32_t *mark, uint32_t number)
{
    *mark = number;
}

void mark(void *self, az_queue queue, uint32_t number)
{
    Device *d = device_of(self);
    set_mark<<<1, 1, 0, d->streams[queue]>>>(d->marks + queue, number);
    check(d, cudaGetLastError(), "mark");
}

uint32_t get_mark(void *self, az_queue queue)
{
    return static_cast<volatile uint32_t *>(device_of(self)->marks)[queue];
}

/* ---- events ---- */

int create_event(void *, void **out, char *text, size_t size)
{
    cudaEvent_t event;
    const cudaError_t e = cudaEventCreate(&event);
    *out = e == cudaSuccess ? event : nullptr;
    return describe_error(e, text, size);
}

void destroy_event(void *self, void *event)
{
    check(device_of(self), cudaEventDestroy(static_cast<cudaEvent_t>(event)), "event");
}

void record(void *self, void *event, az_queue queue)
{
    Device *d = device_of(self);
    check(d, cudaEventRecord(static_cast<cudaEvent_t>(event), d->streams[queue]), "event");
}

void wait_event(void *self, az_queue queue, void *event)
{
    Device *d = device_of(self);
    check(d, cudaStreamWaitEvent(d->streams[queue], static_cast<cudaEvent_t>(event), 0), "wait");
}

void sync_event(void *self, void *event)
{
    check(device_of(self), cudaEventSynchronize(static_cast<cudaEvent_t>(event)),
          "queued work");
}

void sync_queue(void *self, az_queue queue)
{
    Device *d = device_of(self);
    check(d, cudaStreamSynchronize(d->streams[queue]), "queued work");
}

int is_done(void *self, void *event)
{
    const cudaError_t e = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (e != cudaErrorNotReady)
        check(device_of(self), e, "queued work");
    else
        (void)cudaGetLastError(); /* or the next launch would find it */
    return e == cudaSuccess;
}

double get_seconds(void *self, void *begin, void *end)
{
    float ms = 0;
    check(device_of(self),
          cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin),
                               static_cast<cudaEvent_t>(end)),
          "time of an event");
    return ms / 1e3;
}

void *get_stream(void *self, az_queue queue)
{
    return device_of(self)->streams[queue];
}

} // namespace

extern "C" const az_dev_backend az_backend_dev = {
    AZ_BACKEND_VERSION, count,  describe,  get_versions, open_device,  close_device,
    alloc_device,       free_device, alloc_host, free_host, pin, unpin,
    get_free,           can_reach, copy, fill, mark, get_mark,
    create_event,       destroy_event, record, wait_event, sync_event, sync_queue,
    is_done,            get_seconds, get_stream};
