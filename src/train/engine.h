/* train/engine: a model with its adapter, ready to be passed through: what train, eval and generate
 * have in common. */
#ifndef AZ_TRAIN_ENGINE_H
#define AZ_TRAIN_ENGINE_H

#include "base/base.h"
#include "comm/comm.h"
#include "deck/deck.h"
#include "lora/lora.h"
#include "model/config.h"
#include "plan/plan.h"
#include "pass/pass.h"
#include "shard/shard.h"
#include "text/text.h"
#include "train/device.h"

/* Where the adapter comes from. */
typedef enum {
    AZ_ADAPTER_NONE,
    AZ_ADAPTER_DECK, /* lora.* of the deck, or lora.init_from */
    AZ_ADAPTER_PATH  /* a PEFT directory, a checkpoint or adapter.h5, as it is */
} az_adapter_source;

/* An adapter that is kept somewhere: a directory, or a file, which is open until it is loaded. */
typedef struct {
    const char *path; /* NULL: there is none */
    az_h5_reader *h5; /* NULL: a directory */
} az_kept_adapter;

typedef struct {
    az_comm *comm;    /* borrowed */
    bool config_does; /* set before az_engine_read: without safetensors the tensors that config.json
                         implies will do, and no GPU is opened; nothing can be loaded then */
    az_device device; /* what this rank computes on */
    const char *model_dir;
    az_config config;
    az_tensor_set set;
    az_table table;
    az_shard *shard;
    az_linear *linears;
    int n_linears;
    az_peft_config peft;
    az_adapter_source source;
    az_kept_adapter kept;
    az_lora lora;      /* no pairs: the base alone */
    az_params *params; /* the adapter's */
} az_engine;

/* Set run.threads; read config and headers (on one rank, handed on) and which adapter there is to
 * be. Nothing that grows with the model is allocated. Start from {0}. opt_path: for
 * AZ_ADAPTER_PATH. Collective. */
az_err az_engine_read(az_engine *engine, const az_deck *deck, az_adapter_source source,
                      const char *opt_path, az_comm *comm);
/* After az_engine_read, as was planned: the copy of model.stage, if it is given, the adapter (rank
 * 0 reads it for all, or each rank its part of a file), then the base. Collective. */
az_err az_engine_load(az_engine *engine, const az_deck *deck, const az_plan *plan,
                      const az_plan_input *input);
void az_engine_close(az_engine *engine);
/* What a pass takes. Local. */
az_model_parts az_engine_get_parts(const az_engine *engine);
/* The tokenizer that the deck names, else the model's; NULL without a failure if there is none and
 * none was named. Local. */
az_err az_engine_open_tokenizer(az_tokenizer **out_tokenizer, const az_deck *deck);
/* The id that ends a text: the tokenizer's eos_token, else the model's first; -1: none. */
int32_t az_engine_get_eos(const az_engine *engine, const az_tokenizer *opt_tokenizer);
/* Two or three lines: the model and its sizes, the adapter, how much of all is trainable. Local. */
void az_engine_say(const az_engine *engine);

#endif
