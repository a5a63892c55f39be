/* plan: what a run will need and do, before anything of it is allocated, on this machine or on one
 * that is not there.
 *
 * From the sizes of the model, the machine and the micro-batches, pure functions choose how the
 * base and what is computed from it lie in memory, count memory by category, bytes over the network
 * and operations a step, and say why. Sizes come from the functions that the modules allocate by.
 * One number, the memory of a node (of a GPU, for GPUs), decides everything that no key has
 * settled.
 *
 * A *domain* is what shares a memory: a node with its ranks, or one GPU with its one rank. A node
 * with GPUs has memory of its own besides, which is counted apart and must suffice too.
 * Everything here is Local. */
#ifndef AZ_PLAN_PLAN_H
#define AZ_PLAN_PLAN_H

#include "base/base.h"
#include "comm/comm.h"
#include "deck/deck.h"
#include "lora/lora.h"
#include "model/config.h"
#include "pass/pass.h"
#include "shard/shard.h"
#include "store/safetensors.h"

/* ---- what is planned for ---- */

/* Ranks of a job, at most; more would take long to plan for. */
#define AZ_PLAN_MAX_RANKS (1 << 20)

typedef struct {
    az_topology topology;
    int threads;      /* of a rank */
    int cores;        /* of the node with the fewest; 0: not known */
    bool gpu;         /* one rank a GPU, each with memory of its own */
    az_dtype act;     /* type of activations; the CPU has f32 alone */
    bool nccl;        /* GPUs of different nodes exchange data by NCCL, else by MPI */
    bool measured;    /* gpu: memory is what is left beside contexts, communicators and kernels */
    int64_t memory;   /* that may be filled, of a node's ranks together; gpu: of a GPU */
    char source[160]; /* where memory comes from, for people */
    int64_t host_memory; /* gpu: that a node's ranks may fill of its own; 0: not known */
    char host_source[160];
    double link;      /* bytes a second into a node, and out of it at the same time */
    double flops;     /* operations a second of a rank */
    double disk;      /* bytes a second that checkpoints are written with; 0: not known */
    double node_link; /* bytes a second into a GPU from the others of its node */
    double host_link; /* the same from its node's own memory */
    bool link_given, flops_given, node_link_given, host_link_given; /* else they are assumed */
} az_machine;

/* This machine's memory, less a reserve, or what is given: run.memory. */
void az_machine_find_memory(az_machine *machine, int64_t opt_given);
/* The same for host_memory. */
void az_machine_find_host_memory(az_machine *machine);
/* Fill threads, links and flops where they are 0 with what is assumed. */
void az_machine_assume(az_machine *machine);

/* What is computed in a step; for evaluation or generation train.tokens is 0. */
typedef struct {
    az_pass_limits train, eval; /* largest micro-batches; eval.tokens 0: no evaluation */
    int64_t cache_bytes;        /* of generation, in each process */
    int64_t n_micro;            /* micro-batches of a step */
    int64_t tokens, targets;    /* of a step */
    double keys;                /* summed over the step's tokens: how many keys each attends to */
    int64_t text_bytes;         /* samples, as every rank holds them */
    bool exact;                 /* from the samples; else from the deck's limits */
} az_work_load;

/* From the samples and their schedule, which is left at some step. opt_eval: limits of the
 * micro-batches of evaluation. To be called while all datasets and schedules of the run are there:
 * the memory that they take is looked up. */
void az_work_from_samples(az_work_load *work, const az_dataset *train, az_schedule *schedule,
                          const az_pass_limits *opt_eval);
/* Evaluation or generation as a job's only work: step is all of it. Called as the one above. */
void az_work_from_forward(az_work_load *work, const az_pass_limits *limits, const az_step *step,
                          int64_t cache_bytes);
/* The most that the deck allows, without samples: sizes of files stand for the text. */
void az_work_from_deck(az_work_load *work, const az_deck *deck);

/* What keys have settled; the fields are as in az_plan_choice, and auto where they are negative. */
typedef struct {
    int scope;        /* az_scope, AZ_SCOPE_AUTO */
    bool poll;        /* shard.progress: no thread brings units */
    bool map;         /* model.load: the base is the system's cache of its files */
    double resident;  /* of the base's bytes */
    int slots;        /* 0: auto */
    int accumulation; /* 0 depth first, 1 layer-major */
    int activations;  /* az_level of all layers */
    int gathered;     /* adapter: 0 replicated, 1 gathered */
    int unit_reduce;  /* gradient: 0 at the end of a step, 1 with each unit */
    double lead;      /* checkpoint.lead, seconds; < 0: from the time of a save */
} az_plan_keys;
void az_plan_read_keys(az_plan_keys *keys, const az_deck *deck);

typedef struct {
    const az_config *config;
    const az_table *table;
    const az_tensor_set *set;
    const az_lora *lora;
    az_machine machine;
    az_work_load work;
    az_plan_keys keys;
} az_plan_input;

/* ---- the plan ---- */

typedef struct {
    az_scope scope;
    double resident; /* of the base's bytes: whole in each domain */
    size_t spend;    /* bytes a domain for it, as az_shard_choose_resident takes them */
    int n_resident;  /* units */
    int slots;       /* 0: every unit is resident */
    int group;       /* micro-batches of a rank that pass through a unit while it is gathered */
    int n_keep, n_cheap,
        n_recompute;  /* layers whose activations are kept, kept in part, not kept */
    bool gathered;    /* adapter: brought with its layer; else whole in each domain */
    bool unit_reduce; /* gradient: reduced with each layer; else at the end of a step */
} az_plan_choice;

typedef enum {
    AZ_PLAN_SLICES,
    AZ_PLAN_COPY,
    AZ_PLAN_RESIDENT,
    AZ_PLAN_SLOTS,
    AZ_PLAN_ACTIVATIONS,
    AZ_PLAN_HEAD,
    AZ_PLAN_ADAPTER,
    AZ_PLAN_GRADIENT,
    AZ_PLAN_MOMENTS,
    AZ_PLAN_COMMUNICATION,
    AZ_PLAN_TEXT,
    AZ_PLAN_PAGE_TABLES,
    AZ_PLAN_LIBRARIES,
    AZ_PLAN_N_CATEGORIES
} az_plan_category;

/* Bytes. */
typedef struct {
    int64_t shared;      /* by the ranks of a domain */
    int64_t most, least; /* of the heaviest and the lightest rank alone */
    int64_t domain;      /* all of the fullest domain */
} az_plan_memory;

/* A step. */
typedef struct {
    int64_t base_in;     /* weights into a node, from other nodes */
    int64_t adapter_in;  /* gradient sums and parameters into a node; as much goes out */
    int64_t base_within; /* weights between the memories of a node's GPUs */
    int64_t base_up;     /* weights from a node's own memory into its GPUs */
    int64_t in_node;     /* these and the adapter */
    int64_t fetches;     /* units that are brought, in a step */
    double flops;        /* of all ranks, what is computed again included */
    double flops_again;  /* of it: what is computed again as it was not kept */
} az_plan_traffic;

/* Seconds a step, to compare choices with; not a promise. */
typedef struct {
    double compute, transfer, exchange, step;
} az_plan_time;

enum { AZ_PLAN_LINE = 400, AZ_PLAN_MAX_REASONS = 12, AZ_PLAN_MAX_WARNINGS = 8 };

/* One thing that would make it fit. */
typedef struct {
    int64_t memory;      /* of a node, or a GPU; 0: no amount would */
    int64_t host_memory; /* gpu: of a node; 0: there is enough */
    int64_t tokens;      /* of a micro-batch at most; 0: no number would */
    int nodes;           /* 0: no number would */
} az_plan_change;

typedef struct {
    az_plan_choice choice;
    az_plan_memory memory[AZ_PLAN_N_CATEGORIES], total;    /* of domains */
    az_plan_memory host[AZ_PLAN_N_CATEGORIES], host_total; /* gpu: of nodes, beside the GPUs */
    az_plan_traffic traffic;
    az_plan_time time;
    bool fits;
    az_plan_change change; /* where it does not */
    char change_text[3 * AZ_PLAN_LINE];
    /* choice k: "scope", "world", why */
    struct {
        char name[24], value[64], why[AZ_PLAN_LINE];
    } reasons[AZ_PLAN_MAX_REASONS];
    int n_reasons;
    char warnings[AZ_PLAN_MAX_WARNINGS][AZ_PLAN_LINE];
    int n_warnings;
    int64_t base_bytes, checkpoint_bytes;
    int64_t writing; /* of the adapter: what is there only while it is written */
    int64_t rounds;  /* micro-batches that the busiest rank has in a step */
} az_plan;

/* Choose and count. A plan that does not fit is no failure: plan->fits says it, and plan->change
 * what would. */
az_err az_plan_make(az_plan *plan, const az_plan_input *input);
/* Whether a domain's memory suffices, and whether a node's own does, where it has GPUs. */
bool az_plan_fits_domain(const az_plan *plan, const az_machine *machine);
bool az_plan_fits_host(const az_plan *plan, const az_machine *machine);
/* For a run that is to begin: AZ_EINPUT with what would fit, if it does not. */
az_err az_plan_check(const az_plan *plan, const az_plan_input *input);
/* What the modules are to do, as their options want it: which units are resident, [n_units] of
 * az_shard_list_units; the level of each layer, [L]. The first fails for want of memory only. */
az_err az_plan_fill_resident(bool *resident, const az_plan *plan, const az_plan_input *input);
void az_plan_fill_levels(az_level *levels, const az_plan_choice *choice, int64_t L);
/* "base slices". */
const char *az_plan_category_name(az_plan_category category);

/* ---- what is said ---- */

/* The whole plan as a table for people, and as JSON. */
az_err az_plan_add_text(az_str *out, const az_plan *plan, const az_plan_input *input);
az_err az_plan_add_json(az_str *out, const az_plan *plan, const az_plan_input *input);
/* What is allocated now, of the fullest node (with GPUs: of the fullest GPU, and of the fullest
 * node's own memory), beside what was planned: a line each where they differ by more than a
 * hundredth, and the sum. *out_difference: of the sums, as a share of the planned one; the larger
 * one of GPUs and nodes. Of what processes take outside of adze's own memory nothing is known here.
 * Sums below 1 MiB are judged as if they were that. To be called while all of it is there.
 * Collective. */
void az_plan_compare(double *out_difference, const az_plan *plan, const az_plan_input *input,
                     az_comm *comm);
/* The lines of a run's banner. */
void az_plan_say(const az_plan *plan, const az_plan_input *input);

#endif
