#!/bin/bash
# `adze plan`: a directory with config.json alone will do; the output names every category; what does not fit is exit code 1 with
# a change that then fits; options that are wrong are refused by name; --json is whole; the plan of small files is that of the
# samples. No run is started and nothing is written.
. "${srcdir:-.}/tests/runs/lib.sh" || exit 99
mkdir "$tmp/model"
cat >"$tmp/model/config.json" <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 5120, "intermediate_size": 25600,
 "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
 "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}
END
cat >"$tmp/deck.yaml" <<'END'
model: {path: model}
train: {batch_size: 32}
END
# plan CODE ARGUMENTS...: the command's output in $tmp/log
plan() {
    local code=$1 rc=0
    shift
    timeout 60 ./adze plan "$tmp/deck.yaml" "$@" >"$tmp/log" 2>&1 || rc=$?
    [ $rc -eq "$code" ] || fail "adze plan $*: code $rc, expected $code"
}
says() { grep -qF -- "$1" "$tmp/log" || fail "does not say: $1"; }
# refused MESSAGE ARGUMENTS...
refused() {
    local message=$1
    shift
    plan 2 "$@"
    says "$message"
}

plan 0 --nodes 4 --ranks-per-node 4 --threads 2 --memory 128GB --link 25GB/s --flops 2TFLOP/s
for word in 'base slices' 'gather slots' activations 'head chunk' adapter gradient moments communication 'page tables' libraries total; do
    grep -q "^  $word " "$tmp/log" || fail "no row: $word"
done
for word in scope residency slots activations accumulation adapter reduce offload; do
    grep -Eq "^(choices   |          )$word " "$tmp/log" || fail "no choice: $word"
done
says '4 nodes x 4 ranks x 2 threads; 119.21 GiB of memory a node (as given)'
says 'link of a node 200 Gbit/s, 2 TFLOP/s a rank'
grep -q '^fits ' "$tmp/log" || fail 'does not say that it fits'
plan 0 --memory '256 GB' run.memory=1GiB # an option wins over the deck
plan 1 run.memory=40GiB
says 'does not fit'
says 'the smallest change that fits: '

# The change is made, and it fits.
plan 1 --json --memory 40GiB
need=$(sed -n 's/^  "change": {"memory": \([0-9]*\).*/\1/p' "$tmp/log")
nodes=$(sed -n 's/^  "change": .*"nodes": \([0-9]*\).*/\1/p' "$tmp/log")
[ -n "$need" ] && [ "$nodes" -gt 1 ] || fail 'change of the JSON'
plan 0 --memory "$need"
plan 0 --memory 40GiB --nodes "$nodes"
plan 1 --memory 40GiB --nodes $((nodes - 1))

# What is written is enough, though it is rounded.
plan 1 --memory 40GiB
written=$(sed -n 's/.*the smallest change that fits: \([0-9.]* [A-Za-z]*\) of memory a node instead.*/\1/p' "$tmp/log")
[ -n "$written" ] || fail 'change in words'
plan 0 --memory "$written"

plan 1 --json --memory 64GiB
tokens=$(sed -n 's/^  "change": .*"micro_batch_tokens": \([0-9]*\).*/\1/p' "$tmp/log")
[ "$tokens" -gt 100 ] || fail 'tokens of the JSON'
plan 0 --memory 64GiB data.max_length="$tokens"

# GPUs: their memory and the nodes' own, between which comm.internode decides.
plan 0 --device gpu --nodes 2 --ranks-per-node 8 --memory 24GB --host-memory 256GB shard.scope=world
says '2 nodes x 8 GPUs (a rank each)'
says '238.42 GiB of a node'"'"'s own memory (as given)'
says 'in bf16, MPI between nodes'
says 'base slices'
sed -n '/^host /,$p' "$tmp/log" | grep -q '^  base slices ' || fail "the nodes do not hold the base"
plan 1 --device gpu --nodes 2 --ranks-per-node 8 --memory 24GB --host-memory 16GB shard.scope=world
says "of a node's own memory, beside its GPUs; the smallest change that fits: "
plan 0 --device gpu --nodes 2 --ranks-per-node 8 --memory 24GB --host-memory 16GB shard.scope=world comm.internode=nccl
! sed -n '/^host /,$p' "$tmp/log" | grep -q '^  base slices ' || fail "the nodes hold the base, with NCCL"
says 'NCCL between nodes'
plan 0 --device gpu --json --nodes 2 --ranks-per-node 8 --memory 24GB run.device=gpu
grep -q '"host_total": ' "$tmp/log" || fail "no host_total"
tests/tools/read_json "$tmp/log" || fail 'JSON of GPUs'
refused 'adze plan: --host-memory and --host-link need --device gpu' --host-memory 16GB
CUDA_VISIBLE_DEVICES='' refused 'adze plan: for GPUs --memory, that of one GPU, or run.memory is needed, as there is none here: ' --device gpu
CUDA_VISIBLE_DEVICES='' refused 'adze plan: for GPUs --memory' run.device=gpu
plan 0 run.device=gpu run.memory=80GB run.compute=f32
says '1 node x 1 GPU (a rank each); 74.51 GiB of memory a GPU (as given)'
says ' in f32'
plan 0 --device cpu run.device=gpu --memory 200GB
says '1 node x 1 rank'

# A thousand nodes.
plan 0 --json --nodes 1000 --ranks-per-node 64 --memory 512GB train.batch_size=64000
grep -q '"nodes": 1000, "ranks": 64000' "$tmp/log" || fail 'thousand nodes'
tests/tools/read_json "$tmp/log" || fail 'JSON'

# Numbers that are as large as they may be.
plan 0 train.batch_size=4000000 shard.accumulation=layer_major --memory 4000000TiB
plan 1 --ranks-per-node 100000 --memory 1MB
refused 'more than can be planned for, 1048576 ranks' --nodes 11 --ranks-per-node 100000
refused 'the plan: micro-batches of 17592186044416 tokens, 1 at a time, need more memory than can be counted' \
    train.batch_size=16777216 data.max_length=16777216 train.micro_batch_size=1048576

refused 'adze plan: --nodes: found 0, expected a number from 1 to 100000' --nodes 0
refused 'adze plan: --nodes: found nothing' --nodes
refused 'adze plan: --memory: found 24G, expected a size such as 24GiB, 512 MB' --memory 24G
refused 'adze plan: --link: found 10, expected a speed such as 25GB/s' --link 10
refused 'adze plan: --link: found 1e-300B/s' --link 1e-300B/s
refused 'adze plan: --flops: found fast, expected operations a second' --flops fast
refused 'adze plan: --device: found tpu, expected cpu or gpu' --device tpu
refused 'adze plan: --node: no such option; there are --nodes' --node 3
refused 'run.memory: found 24G, expected a size such as 24GiB' run.memory=24G
refused '2000000 (bytes), at least 1.00 MiB' run.memory=1MB
refused 'config.json: cannot open' model.path="$tmp/none"
sed -i 's/"llama"/"qwen3"/' "$tmp/model/config.json"
refused 'model_type: found "qwen3", supported: llama'

# Small files are read: the step is that of the samples.
timeout 60 ./adze plan "$src/tests/runs/exact.yaml" --memory 1GiB >"$tmp/log" 2>&1 || fail 'exact.yaml'
says 'from the samples'
timeout 60 ./adze plan "$src/tests/runs/exact.yaml" >"$tmp/log" 2>&1 || fail 'exact.yaml, this machine'
says 'less a reserve of'
SLURM_MEM_PER_NODE=2048 timeout 60 ./adze plan "$src/tests/runs/exact.yaml" >"$tmp/log" 2>&1 || fail 'exact.yaml, Slurm'
says '(SLURM_MEM_PER_NODE, 2.00 GiB, less a reserve of 128.00 MiB)'
# What is no whole number is no limit.
for words in SLURM_MEM_PER_NODE=2G SLURM_MEM_PER_NODE=1e3 SLURM_MEM_PER_NODE=99999999999999 'SLURM_MEM_PER_CPU=4294967296 SLURM_CPUS_ON_NODE=4294967296'; do
    # shellcheck disable=SC2086
    env $words timeout 60 ./adze plan "$src/tests/runs/exact.yaml" >"$tmp/log" 2>&1 || fail "exact.yaml, $words"
    ! grep -q SLURM_MEM "$tmp/log" || fail "$words: a limit"
done

# A run moves what the plan says: five steps of two rounds on two nodes, weights cut over them.
steps=(train.micro_batch_size=1 train.batch_size=8 train.max_steps=5 eval.file=null eval.steps=null shard.scope=world shard.slots=2 shard.accumulation=depth_first)
timeout 60 ./adze plan "$src/tests/runs/exact.yaml" --json --nodes 2 --ranks-per-node 2 "${steps[@]}" >"$tmp/json" || fail 'plan of two nodes'
planned=$(sed -n 's/.*"weights_into_node": \([0-9]*\).*/\1/p' "$tmp/json")
MPIR_CVAR_NUM_CLIQUES=2 adze 4 train "$src/tests/runs/exact.yaml" output.dir="$tmp/out" "${steps[@]}" || fail 'two nodes'
sed -n 's/^gathers .* of \([0-9.]*\) \([A-Za-z]*\) received by each node.*/\1 \2/p' "$tmp/log" | awk -v planned="$planned" '
    { unit["B"] = 1; unit["KiB"] = 1024; unit["MiB"] = 1048576; moved = $1 * unit[$2] / 5 }
    END { off = moved / planned - 1; print "planned " planned ", moved " moved " bytes a step"; exit !(planned > 0 && off < 0.05 && off > -0.05) }' ||
    fail 'a run moves something else than was planned'
