#!/usr/bin/env python3
"""Makes the golden models in tests/golden/llama-*/ with transformers and peft.

What: tiny random Llama models with a random LoRA pair on them, the logits, loss and adapter
gradients that the peer finds, and the adapter after eleven AdamW steps. Why: adze must agree with
an independent program on files of the formats that people really have. The files are committed, so
that `make check` needs no Python; README.md beside this says what each file holds.

    python3 make_llama.py [NAME ...]     # all, or the named configurations, into this folder

Every sample runs alone, so nothing here depends on padding. All arithmetic is float32 on one
thread; the same run in float64 tells how much of a difference is the peer's own rounding
(manifest.json, "noise"). Seeds are fixed: running again on the same kind of CPU with the same
versions gives the same bytes.
"""

import json
import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":         # peft writes target_modules in hash order
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable] + sys.argv)
os.environ["HF_HUB_OFFLINE"] = "1"

import platform
import shutil
import warnings

import numpy as np
import peft
import safetensors
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 97                    # odd, so that no row count is a multiple of a block
SAMPLES, STEP = 43, 4         # ten steps of four samples and a last one of three
MAX_LENGTH = 64
IGNORE = -100
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# The configurations. "model" goes to LlamaConfig, "lora" to LoraConfig, "train" to deck.yaml.
# v4: config.json is rewritten in the keys that transformers 4 wrote.
CONFIGS = {
    "gqa": dict(
        seed=101, v4=True, no_target_lines=[5, 30],
        model=dict(hidden_size=48, intermediate_size=88, num_hidden_layers=2,
                   num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        lora=dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
        train=dict(learning_rate=5e-3, lr_scheduler_type="cosine", warmup_steps=2,
                   weight_decay=0.05, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
                   max_grad_norm=0.25)),
    "tied": dict(
        seed=202, literal_all_linear=True,
        model=dict(hidden_size=40, intermediate_size=72, num_hidden_layers=3,
                   num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-6,
                   tie_word_embeddings=True,
                   rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
        lora=dict(r=8, lora_alpha=16, target_modules="all-linear"),
        train=dict(learning_rate=2e-3, lr_scheduler_type="linear", warmup_steps=2,
                   weight_decay=0.05, adam_beta1=0.85, adam_beta2=0.98, adam_epsilon=1e-6,
                   max_grad_norm=1.0)),
    "headdim": dict(
        seed=303, eos=[2, 5],
        model=dict(hidden_size=40, intermediate_size=56, num_hidden_layers=2, head_dim=16,
                   num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-3,
                   attention_bias=True, mlp_bias=True,
                   rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        lora=dict(r=4, lora_alpha=6, use_rslora=True,
                  target_modules=["q_proj", "o_proj", "down_proj"]),
        train=dict(learning_rate=1e-2, lr_scheduler_type="constant", warmup_steps=0,
                   weight_decay=0.05, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-5,
                   max_grad_norm=0.5)),
    # Orders of rotary frequencies below: one left alone, two blended, the rest divided.
    "rope3": dict(
        seed=404,
        model=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=16,
                   num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=4.0,
                                        low_freq_factor=0.5, high_freq_factor=2.0,
                                        original_max_position_embeddings=16)),
        lora=dict(r=8, lora_alpha=12.5, target_modules="all-linear",
                  rank_pattern={"down_proj": 3}, alpha_pattern={"down_proj": 4.75}),
        train=dict(learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=2,
                   weight_decay=0.05, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
                   max_grad_norm=0.5)),
    "bf16": dict(
        seed=505, v4=True, bf16=True, shard="40KB",
        model=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3,
                   num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=2.0,
                                        low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=32)),
        lora=dict(r=8, lora_alpha=16, target_modules="all-linear"),
        train=dict(learning_rate=2e-3, lr_scheduler_type="linear", warmup_steps=3,
                   weight_decay=0.05, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8,
                   max_grad_norm=0.5)),
    # No adapter in the lowest layer (backward stops above it) nor in the highest (backward passes).
    "layers": dict(
        seed=606,
        model=dict(hidden_size=32, intermediate_size=56, num_hidden_layers=4,
                   num_attention_heads=4, num_key_value_heads=1, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        lora=dict(r=4, lora_alpha=10, target_modules=["o_proj", "down_proj"],
                  layers_to_transform=[1, 2]),
        train=dict(learning_rate=5e-3, lr_scheduler_type="cosine", warmup_steps=0,
                   weight_decay=0.05, adam_beta1=0.9, adam_beta2=0.99, adam_epsilon=1e-4,
                   max_grad_norm=0.4)),
}


def normal(gen, shape, std, mean=0.0):
    """float32 normal numbers from numpy's generator, which is the same on every machine."""
    return torch.from_numpy((mean + std * gen.standard_normal(tuple(shape))).astype(np.float32))


def make_model(conf, gen, path):
    """Saves a random model as a Hugging Face directory."""
    args = dict(vocab_size=VOCAB, max_position_embeddings=MAX_LENGTH, bos_token_id=1,
                eos_token_id=conf.get("eos", 2), pad_token_id=None, use_cache=True)
    model = LlamaForCausalLM(LlamaConfig(**args, **conf["model"]))
    norms = {}
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "norm" in name:
                p.copy_(normal(gen, p.shape, 0.25, mean=1.0))
                norms[name] = p.clone()
            elif name.endswith("bias"):
                p.copy_(normal(gen, p.shape, 0.2))
            elif "embed" in name or "lm_head" in name:
                p.copy_(normal(gen, p.shape, 0.3))
            else:
                p.copy_(normal(gen, p.shape, 0.9 / p.shape[1] ** 0.5))
    if conf.get("bf16"):
        model = model.to(torch.bfloat16)
    model.save_pretrained(path, max_shard_size=conf.get("shard", "1GB"))
    if conf.get("bf16"):
        mix_norm_types(path, norms)
    if conf.get("v4"):
        rewrite_config_v4(os.path.join(path, "config.json"))


def mix_norm_types(path, norms):
    """Puts the norm weights of a bf16 model into its shards as F32 and, one in three, F16."""
    index_path = os.path.join(path, "model.safetensors.index.json")
    index = json.load(open(index_path))
    total = 0
    for shard in sorted(set(index["weight_map"].values())):
        tensors = load_file(os.path.join(path, shard))
        for i, name in enumerate(sorted(norms)):
            if name in tensors:
                tensors[name] = norms[name].to(torch.float16 if i % 3 == 1 else torch.float32)
        total += sum(t.numel() * t.element_size() for t in tensors.values())
        save_file(tensors, os.path.join(path, shard), metadata={"format": "pt"})
    index["metadata"]["total_size"] = total
    write_json(index_path, index)


def rewrite_config_v4(path):
    """rope_parameters -> rope_theta + rope_scaling, dtype -> torch_dtype, head_dim left out."""
    config = json.load(open(path))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("head_dim", None)
    config["transformers_version"] = "4.43.0"
    write_json(path, dict(sorted(config.items())))


def make_adapter(conf, gen, root):
    """Saves a random PEFT adapter: B is random too, since with B = 0 half the backward is idle."""
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **conf["lora"])
    model = peft.get_peft_model(model, lora)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if "lora_A" in name:
                p.copy_(normal(gen, p.shape, 1.0 / p.shape[1] ** 0.5))
            elif "lora_B" in name:
                p.copy_(normal(gen, p.shape, 0.3 / p.shape[1] ** 0.5))
    model.save_pretrained("adapter")
    os.remove("adapter/README.md")
    if conf.get("literal_all_linear"):      # published configurations that keep the word exist
        config = json.load(open("adapter/adapter_config.json"))
        config["target_modules"] = "all-linear"
        write_json("adapter/adapter_config.json", config)


def make_data(conf, gen):
    """The samples: different lengths, masked prompts, holes, labels that are not the ids."""
    samples = []
    for i in range(SAMPLES):
        n = int(gen.integers(3, 61)) if i > 3 else (9, 60, 3, 31)[i]
        if i in (7, 20, 41):
            n = 2                           # one target and nothing else
        ids = [int(x) for x in gen.integers(0, VOCAB, n)]
        ids[int(gen.integers(0, n))] = VOCAB - 1 if i % 3 == 0 else 0
        labels = list(ids)
        if n > 4 and i % 3 == 1:            # a masked prompt
            labels[:n // 3] = [IGNORE] * (n // 3)
        if n > 6 and i % 4 == 2:            # holes, and the last position is no target
            labels[n // 2] = labels[n // 2 + 1] = labels[-1] = IGNORE
        if n > 6 and i % 8 == 3:            # labels need not repeat the ids
            labels[3] = (labels[3] + 11) % VOCAB if labels[3] >= 0 else 5
        samples.append(dict(input_ids=ids, labels=labels))
    lines = list(samples)
    for k, at in enumerate(conf.get("no_target_lines", [])):
        # Samples without a target do not count as samples: length 1; all but position 0 masked.
        ids = [7] if k == 0 else [3, 9, 27, 81]
        lines.insert(at, dict(input_ids=ids, labels=[ids[0]] + [IGNORE] * (len(ids) - 1)))
    with open("data.jsonl", "w") as f:
        for s in lines:
            f.write(json.dumps(s, separators=(",", ":")) + "\n")


def read_data():
    samples = [json.loads(line) for line in open("data.jsonl")]
    return [s for s in samples if any(x != IGNORE for x in s["labels"][1:])]


def forward(model, sample):
    """logits [T,V], sum of the negative log likelihoods of its targets, their number."""
    ids = torch.tensor([sample["input_ids"]])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    labels = torch.tensor(sample["labels"][1:])
    nll = F.cross_entropy(logits[:-1], labels, ignore_index=IGNORE, reduction="sum")
    return logits, nll, int((labels != IGNORE).sum())


def load(dtype):
    """The peer's model and adapter from the files, as anybody would load them."""
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32,
                                                 attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, "adapter", is_trainable=True)
    model = model.to(dtype)
    model.train()
    return model, {peft_key(n): p for n, p in model.named_parameters() if p.requires_grad}


def peft_key(name):
    return name.replace(".default", "")


def check_loaded(conf):
    """Each parameter is what the file holds, widened; each adapter tensor is the file's."""
    model, adapter = load(torch.float32)
    params = {n.replace(".base_layer", ""): p for n, p in model.named_parameters()}
    types = set()
    for shard in sorted(os.listdir("model")):
        if shard.endswith(".safetensors"):
            for name, t in load_file(os.path.join("model", shard)).items():
                types.add(str(t.dtype))
                assert torch.equal(params["base_model.model." + name], t.float()), name
    saved = load_file("adapter/adapter_model.safetensors")
    assert sorted(saved) == sorted(adapter)
    for name, t in saved.items():
        assert torch.equal(adapter[name], t) and t.dtype == torch.float32 and t.abs().min() > 0
    assert types == ({"torch.bfloat16", "torch.float32", "torch.float16"} if conf.get("bf16")
                     else {"torch.float32"}), types
    if conf.get("v4") or conf.get("literal_all_linear"):
        want, got = conf["model"]["rope_parameters"], model.config.rope_parameters
        assert all(got[k] == v for k, v in want.items()), (want, got)


def expect(samples, dtype):
    """Logits, loss and gradients of the first step's samples."""
    model, adapter = load(dtype)
    runs = [forward(model, s) for s in samples[:STEP]]
    loss = sum(r[1] for r in runs) / sum(r[2] for r in runs)
    loss.backward()
    out = {"logits": torch.cat([r[0] for r in runs]).detach(), "loss": loss.detach().reshape(1)}
    for name, p in adapter.items():
        out["grad." + name] = p.grad.clone()
    return out


def schedule(conf, optimizer, steps):
    kind, warmup = conf["train"]["lr_scheduler_type"], conf["train"]["warmup_steps"]
    if kind == "cosine":
        return transformers.get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    if kind == "linear":
        return transformers.get_linear_schedule_with_warmup(optimizer, warmup, steps)
    return transformers.get_constant_schedule(optimizer)


def train(conf, samples, dtype):
    """Eleven steps in file order, with the loss per target token of the whole step."""
    t = conf["train"]
    model, adapter = load(dtype)
    optimizer = torch.optim.AdamW(adapter.values(), lr=t["learning_rate"],
                                  betas=(t["adam_beta1"], t["adam_beta2"]), eps=t["adam_epsilon"],
                                  weight_decay=t["weight_decay"], foreach=False)
    batches = [samples[i:i + STEP] for i in range(0, len(samples), STEP)]
    scheduler = schedule(conf, optimizer, len(batches))
    losses, norms, lrs = [], [], []
    for batch in batches:
        runs = [forward(model, s) for s in batch]
        loss = sum(r[1] for r in runs) / sum(r[2] for r in runs)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(adapter.values(), t["max_grad_norm"])
        assert norm > 1.25 * t["max_grad_norm"], f"clipping idle: norm {norm:.3f}"
        losses.append(loss.item())
        norms.append(norm.item())
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert len(batches) == 11 and len(batches[-1]) == 3
    out = {name: p.detach().clone() for name, p in adapter.items()}
    for name, values in (("losses", losses), ("grad_norms", norms), ("lrs", lrs)):
        out[name] = torch.tensor(values, dtype=torch.float64)
    return out


def noise(a32, a64, t32, t64):
    """How far the peer in float32 is from the peer in float64, measured as the tests measure."""
    start = load_file("adapter/adapter_model.safetensors")
    rel = {k: float((a32[k].double() - a64[k]).abs().max() / a64[k].abs().max()) for k in a64}
    move = {k: (t64[k] - start[k].double()) for k in start}
    diff = {k: (t32[k].double() - t64[k]) for k in start}
    norm = lambda d: float(torch.cat([x.flatten() for x in d.values()]).norm())
    per = {k: float(diff[k].norm() / move[k].norm()) for k in start}
    return {
        "logits": rel["logits"], "loss": rel["loss"],
        "grad_worst": max(v for k, v in rel.items() if k.startswith("grad.")),
        "train_losses": float((t32["losses"] - t64["losses"]).abs().max()),
        "train_grad_norms": float((t32["grad_norms"] / t64["grad_norms"] - 1).abs().max()),
        "delta_w": norm(diff) / norm(move), "delta_w_worst_tensor": max(per.values()),
    }


def yaml_number(x):
    """YAML 1.1 reads 1e-08 as a string: numbers are written with a point."""
    return str(x) if isinstance(x, int) else np.format_float_positional(x, trim="0")


def write_deck(conf, name):
    t = conf["train"]
    lines = [f"# Golden run of llama-{name}: the same training as in make_llama.py",
             "model:", "  path: model",
             "data:", "  files: [data.jsonl]", "  shuffle: false", f"  max_length: {MAX_LENGTH}",
             "lora:", "  init_from: adapter",
             "train:", f"  batch_size: {STEP}", "  micro_batch_size: 2", "  num_train_epochs: 1",
             f"  learning_rate: {yaml_number(t['learning_rate'])}",
             f"  lr_scheduler_type: {t['lr_scheduler_type']}",
             f"  warmup_steps: {t['warmup_steps']}"]
    for key in ("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"):
        lines.append(f"  {key}: {yaml_number(t[key])}")
    lines += [f"  seed: {conf['seed']}", "output:", "  dir: out"]
    with open("deck.yaml", "w") as f:
        f.write("\n".join(lines) + "\n")


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def f32(tensors):
    return {k: v.to(torch.float32).contiguous() for k, v in tensors.items()}


def make(name, conf):
    root = os.path.join(HERE, "llama-" + name)
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(root)
    os.chdir(root)                          # relative paths, so that no file names this machine
    gen = np.random.default_rng(conf["seed"])
    make_model(conf, gen, "model")
    make_adapter(conf, gen, root)
    make_data(conf, gen)
    write_deck(conf, name)
    check_loaded(conf)
    samples = read_data()
    assert len(samples) == SAMPLES
    a32, a64 = expect(samples, torch.float32), expect(samples, torch.float64)
    t32, t64 = train(conf, samples, torch.float32), train(conf, samples, torch.float64)
    moved = noise(a32, a64, t32, t64)
    assert moved["logits"] < 2e-6 and moved["grad_worst"] < 3e-6, moved
    assert moved["delta_w"] < 1e-4, moved
    save_file(f32(a32), "expect.safetensors", metadata={"format": "pt"})
    save_file(f32(t32), "train.safetensors", metadata={"format": "pt"})
    write_json("manifest.json", {
        "generator": "tests/golden/make_llama.py", "seed": conf["seed"],
        "python": platform.python_version(), "torch": torch.__version__,
        "transformers": transformers.__version__, "peft": peft.__version__,
        "safetensors": safetensors.__version__, "numpy": np.__version__,
        "samples": SAMPLES, "lines_without_target": conf.get("no_target_lines", []),
        "steps": 11, "noise": {k: float(f"{v:.2e}") for k, v in moved.items()}})
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(".") for f in fs)
    print(f"{name}: {size // 1024} KiB, losses {t32['losses'][0]:.3f} .. {t32['losses'][-1]:.3f}, "
          f"norms {t32['grad_norms'].min():.3f} .. {t32['grad_norms'].max():.3f}, noise "
          + " ".join(f"{k} {v:.1e}" for k, v in moved.items()))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.disable_progress_bar()
    names = sys.argv[1:] or list(CONFIGS)
    for name in names:
        make(name, CONFIGS[name])


if __name__ == "__main__":
    main()
