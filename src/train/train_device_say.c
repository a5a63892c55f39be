/* train/device: what is said of it. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/device.h"

void az_device_describe(char *text, size_t size, const az_device *device)
{
    const char *type = device->kern.numeric.act == AZ_BF16 ? "bf16" : "f32";
    if (az_dev_is_gpu(device->dev))
        snprintf(text, size, "GPU %s, %s", az_dev_get_info(device->dev)->name, type);
    else
        snprintf(text, size, "CPU, %s", type);
}

static void warn(const az_device *device, int n_ranks)
{
    if (device->narrow)
        az_warn("the ranks of a node do not see each other's GPUs: NCCL cannot use direct copies "
                "between them, so weights go through the host's memory, several times slower. Let "
                "each task see all GPUs of its node (srun or sbatch --gpus-per-node=N "
                "--gpu-bind=none, without CUDA_VISIBLE_DEVICES)");
    if (device->n_far > 0)
        az_warn("%lld pair%s of GPUs of a node cannot read each other's memory: what goes between "
                "them goes through the host's memory, at less than half of the speed of direct "
                "copies (the line \"links\" says what was measured)",
                (long long)device->n_far / 2, device->n_far == 2 ? "" : "s");
    if (device->mixed)
        az_warn("the ranks have GPUs of different models: all wait for the slowest, and results "
                "depend on which rank has which");
    if (n_ranks < device->n_gpus)
        az_say("          %d of the %d GPUs that the ranks see are not used: a rank uses one",
               device->n_gpus - n_ranks, device->n_gpus);
}

/* "2 x GPU NVIDIA H100, bf16, one a rank: ..." */
static az_err add_device(az_str *out, const az_device *device, const az_comm *comm)
{
    az_err err;
    char what[160], versions[256];
    az_device_describe(what, sizeof what, device);
    if (!az_dev_is_gpu(device->dev)) {
        AZ_TRY(az_str_add(out, "%s", what));
        return device->chosen ? az_str_add(out, " (run.device is auto; %s)", device->why) : AZ_OK;
    }
    const az_gpu_info *gpu = az_dev_get_info(device->dev);
    az_dev_describe_backend(versions, sizeof versions);
    err = az_str_add(out,
                     "%d x %s, one a rank: %s of memory, %d multiprocessors, compute capability "
                     "%d.%d; %s",
                     az_comm_size(comm), what, az_format_bytes((double)gpu->total_bytes), gpu->n_sm,
                     gpu->major, gpu->minor, versions);
out:
    return err;
}

void az_device_say(const az_device *device, const az_comm *comm)
{
    az_str text = {0};
    if (add_device(&text, device, comm) == AZ_OK)
        az_say("device    %s", text.s);
    az_str_fini(&text);
    if (!az_dev_is_gpu(device->dev))
        return;
    warn(device, az_comm_size(comm));
    if (az_comm_size(comm) > 1) {
        char fabric[256];
        az_fabric_describe(device->fabric, fabric, sizeof fabric);
        az_say("fabric    %s", fabric);
    }
}

az_err az_device_add_comment(az_str *out, const az_device *device, const az_comm *comm)
{
    az_err err;
    AZ_TRY(az_str_add(out, "# adze %s, %d rank%s, %s\n# device: ", PACKAGE_VERSION,
                      az_comm_size(comm), az_comm_size(comm) == 1 ? "" : "s", az_comm_library()));
    AZ_TRY(add_device(out, device, comm));
    err = az_str_add(out, "\n");
out:
    return err;
}

void az_device_count_waits(const az_device *device, az_waits *out_waits)
{
    for (int why = 0; why < AZ_N_SYNCS; why++)
        out_waits->n[why] = az_dev_count_syncs(device->dev, (az_sync)why);
    out_waits->fabric =
        device->fabric != NULL ? az_fabric_get_stats(device->fabric) : (az_fabric_stats){0};
}

static bool is_of_steps(int why)
{
    return why != AZ_SYNC_START && why != AZ_SYNC_SAVE;
}

/* "loss 1.00, norm 2.00", or of what belongs to no step "start 12, save 2"; "never". */
static az_err list_waits(az_str *out, const int64_t *n, int64_t n_steps, bool of_steps)
{
    az_err err = AZ_OK;
    for (int why = 0; why < AZ_N_SYNCS; why++)
        if (n[why] > 0 && is_of_steps(why) == of_steps)
            AZ_TRY(az_str_add(out, "%s%s %.*f", out->len > 0 ? ", " : "",
                              az_dev_sync_name((az_sync)why), of_steps ? 2 : 0,
                              (double)n[why] / (double)(of_steps ? n_steps : 1)));
    if (out->len == 0)
        err = az_str_add(out, "never");
out:
    return err;
}

void az_device_say_waits(const az_device *device, const az_waits *since, int64_t n_steps)
{
    az_waits now;
    az_str steps = {0}, once = {0};
    if (!az_dev_is_gpu(device->dev) || n_steps == 0)
        return;
    az_device_count_waits(device, &now);
    for (int why = 0; why < AZ_N_SYNCS; why++)
        now.n[why] -= is_of_steps(why) ? since->n[why] : 0;
    if (list_waits(&steps, now.n, n_steps, true) == AZ_OK &&
        list_waits(&once, now.n, n_steps, false) == AZ_OK)
        az_say("host      waited for the GPU so many times a step: %s; in all: %s", steps.s,
               once.s);
    const int64_t received = now.fabric.received_bytes - since->fabric.received_bytes;
    if (received > 0)
        az_say("messages  %s a step came to this rank from other nodes, the host waited %.3f s a "
               "step for them",
               az_format_bytes((double)received / (double)n_steps),
               (now.fabric.waited_s - since->fabric.waited_s) / (double)n_steps);
    az_str_fini(&steps);
    az_str_fini(&once);
}

/* The one with the most time after last, in order of the table where they are equal. */
static int find_next(const az_dev_time *times, int n, int last)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        const bool after = last < 0 || times[i].seconds < times[last].seconds ||
                           (times[i].seconds == times[last].seconds && i > last);
        if (after && (best < 0 || times[i].seconds > times[best].seconds))
            best = i;
    }
    return best;
}

void az_device_say_times(const az_device *device)
{
    int n;
    double whole = 0;
    const az_dev_time *times = az_dev_get_times(device->dev, &n);
    if (n == 0)
        return;
    for (int i = 0; i < n; i++)
        whole += times[i].seconds;
    az_say("operations of this rank's GPU, of %s in its compute queue:", az_format_seconds(whole));
    for (int i = find_next(times, n, -1); i >= 0; i = find_next(times, n, i))
        az_say("          %-26s %8.3fs  %5.1f %%  %s times", times[i].name, times[i].seconds,
               100 * times[i].seconds / fmax(whole, 1e-9), az_format_count(times[i].n));
}

az_err az_device_list(az_str *out)
{
    az_err err;
    char why[512] = "", versions[256];
    az_gpu_info *gpus = NULL;
    int n = 0;
    AZ_TRY(az_dev_list_gpus(&gpus, &n, why, sizeof why));
    if (n == 0) {
        err = az_str_add(out, "none: %s", why);
        goto out;
    }
    for (int i = 0, same; i < n; i += same) {
        for (same = 1; i + same < n && strcmp(gpus[i].name, gpus[i + same].name) == 0;)
            same++;
        AZ_TRY(az_str_add(out, "%s%d x %s of %s", i > 0 ? ", " : "", same, gpus[i].name,
                          az_format_bytes((double)gpus[i].total_bytes)));
    }
    az_dev_describe_backend(versions, sizeof versions);
    err = az_str_add(out, "; %s", versions);
out:
    az_free(gpus);
    return err;
}
