#!/usr/bin/env python3
"""The demo's job in transformers + peft, to see that its settings work before any other program runs it.

  tune_demo.py            trains with the settings of ../demo.yaml for three seeds of the adapter's
                          start and the order of the samples, and prints loss and exact answers on
                          held-out people before and after
  tune_demo.py train.learning_rate=0.01 lora.r=4 ...     the same with other settings

It exits with 1 if evaluation loss has not at least halved, or if fewer than 90 % of the answers are
right after, or more than 10 % before.  Needs torch, transformers, peft, PyYAML.
"""

import json
import math
import os
import sys
import time

import peft
import torch
import transformers
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
DECK = os.path.join(HERE, "..", "demo.yaml")
SEEDS = (1, 2, 3)


def read_deck(overrides):
    with open(DECK, encoding="utf-8") as file:
        deck = yaml.safe_load(file)
    for override in overrides:
        key, value = override.split("=", 1)
        section, name = key.split(".")
        deck[section][name] = yaml.safe_load(value)
    return deck


def number(value):
    return float(value)     # YAML 1.1 takes 5e-3 for a string


def read_samples(path, tokenizer):
    """(ids, labels): two segments, end of text once, the prompt masked."""
    out = []
    with open(os.path.join(os.path.dirname(DECK), path), encoding="utf-8") as file:
        for sample in map(json.loads, file):
            prompt = tokenizer(sample["prompt"])["input_ids"]
            target = tokenizer(sample["completion"])["input_ids"] + [tokenizer.eos_token_id]
            out.append((prompt + target, [-100] * len(prompt) + target, sample))
    return out


def loss_of(model, samples):
    width = max(len(s[0]) for s in samples)
    ids = torch.tensor([s[0] + [0] * (width - len(s[0])) for s in samples])
    labels = torch.tensor([s[1] + [-100] * (width - len(s[1])) for s in samples])[:, 1:]
    logits = model(input_ids=ids).logits[:, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100,
                                             reduction="sum")
    return loss, int((labels >= 0).sum())


def evaluate(model, samples):
    model.eval()
    with torch.no_grad():
        sums = [loss_of(model, samples[i:i + 32]) for i in range(0, len(samples), 32)]
    return float(sum(s[0] for s in sums)) / sum(s[1] for s in sums)


def exact(model, tokenizer, samples, limit):
    """How many completions greedy generation gets right to the last character, and the last one."""
    model.eval()
    right = 0
    for ids, labels, sample in samples:
        prompt = ids[:labels.count(-100)]
        with torch.no_grad():
            out = model.generate(input_ids=torch.tensor([prompt]),
                                 attention_mask=torch.ones(1, len(prompt), dtype=torch.long), max_new_tokens=limit,
                                 do_sample=False, pad_token_id=tokenizer.eos_token_id)
        text = tokenizer.decode(out[0, len(prompt):].tolist())
        right += text == sample["completion"] + tokenizer.eos_token
    return right, text


def rate(step, train):
    """Linear warm-up, then half a cosine to 0."""
    steps, warm = train["max_steps"], train["warmup_steps"]
    if step < warm:
        return step / warm
    return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2


def run(deck, seed):
    path = os.path.join(os.path.dirname(DECK), deck["model"]["path"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    data = [s for f in deck["data"]["files"] for s in read_samples(f, tokenizer)]
    held, prompts = (read_samples(deck[k]["file"], tokenizer) for k in ("eval", "generate"))
    limit = deck["generate"]["max_new_tokens"]
    train, lora = deck["train"], deck["lora"]

    torch.manual_seed(seed)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    before = evaluate(model, held), exact(model, tokenizer, prompts, limit)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1.0, weight_decay=number(train["weight_decay"]))
    start, seen, order, curve = time.process_time(), 0, [], []
    for step in range(train["max_steps"]):
        model.train()
        size = train["batch_size"]
        if len(order) < size:
            order = torch.randperm(len(data)).tolist()
        batch, order = [data[i] for i in order[:size]], order[size:]
        loss, targets = loss_of(model, batch)
        (loss / targets).backward()
        seen += sum(len(s[0]) for s in batch)
        norm = torch.nn.utils.clip_grad_norm_(trainable, number(train["max_grad_norm"]))
        for group in optimizer.param_groups:
            group["lr"] = number(train["learning_rate"]) * rate(step, train)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            curve.append(f"{loss.item() / targets:.3f}({float(norm):.1f})")
    used = time.process_time() - start
    after = evaluate(model, held), exact(model, tokenizer, prompts, limit)
    good = after[0] <= before[0] / 2 and after[1][0] >= 0.9 * len(prompts) and before[1][0] <= 0.1 * len(prompts)
    print(f"seed {seed}: {sum(p.numel() for p in trainable)} trainable; loss(norm) every 20 steps {' '.join(curve)}\n"
          f"  eval loss {before[0]:.4f} -> {after[0]:.4f} ({before[0] / after[0]:.1f} times), exact {before[1][0]} -> "
          f"{after[1][0]} of {len(prompts)}, {seen} tokens in {train['max_steps']} steps, "
          f"{used:.1f} s of CPU in training\n"
          f"  before: {before[1][1]!r}\n  after:  {after[1][1]!r}", flush=True)
    return good


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}  transformers {transformers.__version__}  peft {peft.__version__}")
    deck = read_deck(sys.argv[1:])
    results = [run(deck, seed) for seed in SEEDS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
