#!/usr/bin/env python3
"""Asks transformers and peft about an adapter that adze wrote.

What: loads MODEL and ADAPTER with the peers as anybody would, and checks that every tensor of the
file is found where PEFT expects it and none besides, that the reference safetensors reader takes
the file, that PEFT's own save gives the same tensors back, and, if asked, that the loss over a file
of input_ids is the one that `adze eval` printed and that the adapter equals another one. Why: an
adapter that only adze can read is worth nothing.

    check_peft.py MODEL ADAPTER [--data FILE.jsonl [--loss X] [--logits FILE] [--tolerance T]]
                  [--same ADAPTER2]

Exit: 0 agreed, 1 not, 77 the peers are not installed.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import peft
    import torch
    import torch.nn.functional as F
    import transformers
    from safetensors import safe_open
    from safetensors.torch import load_file
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

IGNORE = -100
# What decides the arithmetic of an adapter; lists compare as sets.
FIELDS = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias",
          "fan_in_fan_out", "peft_type", "task_type", "use_dora")
faults = []


def expect(ok, what):
    if not ok:
        faults.append(what)
        print("FAIL: " + what)


def tensors(directory):
    return load_file(os.path.join(directory, "adapter_model.safetensors"))


def equal(a, b, what):
    expect(sorted(a) == sorted(b), f"{what}: keys differ: {sorted(set(a) ^ set(b))[:4]}")
    for name in sorted(set(a) & set(b)):
        expect(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]),
               f"{what}: {name} differs")


def config(directory):
    return json.load(open(os.path.join(directory, "adapter_config.json")))


def evaluate(model, path):
    """Sum of the negative log likelihoods of all targets / their number, that, and the logits."""
    total, count, rows = 0.0, 0, []
    with torch.no_grad():
        for line in open(path):
            sample = json.loads(line)
            labels = torch.tensor(sample.get("labels", sample["input_ids"])[1:])
            if not (labels != IGNORE).any():
                continue
            logits = model(input_ids=torch.tensor([sample["input_ids"]])).logits[0]
            total += F.cross_entropy(logits[:-1], labels, ignore_index=IGNORE,
                                     reduction="sum").item()
            count += int((labels != IGNORE).sum())
            rows.append(logits)
    return total / count, count, torch.cat(rows)


def check(args):
    path = os.path.join(args.adapter, "adapter_model.safetensors")
    with safe_open(path, "pt") as f:
        expect(f.metadata() == {"format": "pt"}, f"metadata is {f.metadata()}")
    written = tensors(args.adapter)

    base = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, args.adapter)
    loaded = {n.replace(".default", ""): p for n, p in model.named_parameters() if ".lora_" in n}
    expect(sorted(loaded) == sorted(written),
           f"PEFT's keys differ: {sorted(set(loaded) ^ set(written))[:4]}")
    for name in sorted(set(loaded) & set(written)):
        expect(torch.equal(loaded[name], written[name].float()), f"{name} was not loaded")
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        equal({k: v.float() for k, v in written.items()}, tensors(again), "saved again by PEFT")
        ours, peers = config(args.adapter), config(again)
        for key in FIELDS:
            expect(key in ours, f"adapter_config.json lacks {key}")
            expect(ours.get(key) == peers[key], f"{key}: {ours.get(key)} became {peers[key]}")
    if args.same:
        equal(written, tensors(args.same), args.same)
        ours, other = config(args.adapter), config(args.same)
        for key in FIELDS:
            expect(ours.get(key) == other.get(key), f"{key}: {ours.get(key)}, {other.get(key)}")
    if args.data:
        loss, count, logits = evaluate(model, args.data)
        print(f"loss {loss:.9g} over {count} targets")
        if args.loss is not None:
            expect(abs(loss - args.loss) <= args.tolerance * abs(loss),
                   f"loss {args.loss} differs from the peer's {loss}")
        if args.logits:
            theirs = load_file(args.logits)["logits"].float()
            logits = logits[:len(theirs)]
            error = float((theirs - logits).abs().max() / logits.abs().max())
            print(f"logits {tuple(theirs.shape)}: largest difference {error:.2e} of the largest")
            expect(error <= args.tolerance, f"logits differ by {error}")
    print(f"{len(written)} tensors, {len(faults)} faults")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[2].strip())
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--data")
    parser.add_argument("--loss", type=float)
    parser.add_argument("--logits")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--same")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    try:
        check(args)
    except (RuntimeError, ValueError, OSError, KeyError) as e:
        expect(False, f"{type(e).__name__}: {e}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
