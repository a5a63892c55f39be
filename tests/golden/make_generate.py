#!/usr/bin/env python3
"""Makes tests/golden/generate/*.json: greedy continuations by transformers with a PEFT adapter.

What: for golden models beside this, prompts as token ids, and what `generate` without sampling and
with a key/value cache appends to them; a prompt of one token and a long one among them. Why: the
loop of `adze generate`, its cache and its positions must agree with an independent program.

    python3 make_generate.py      # needs the folders that make_llama.py made

A random model may have two tokens about equally probable, where rounding would decide: a prompt
whose smallest gap between the best and the second logit is below GAP of the largest logit is left
out, so every prompt kept is decided by the model. Fixed seeds; versions are in each file.
"""

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import peft
import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {"llama-gqa": 11, "llama-headdim": 12, "llama-rope3": 13, "llama-tied": 14}
PROMPTS, NEW_TOKENS, GAP = 7, 20, 1e-3
LENGTHS = [1, 2, 3, 5, 9, 17, 33]


def continue_greedily(model, prompt):
    """New ids, and the smallest relative gap between the best two logits on the way."""
    ids = torch.tensor([prompt])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                         max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0,
                         use_cache=True, output_logits=True, return_dict_in_generate=True)
    gap = 1.0
    for logits in out.logits:
        best = torch.topk(logits[0].double(), 2).values
        gap = min(gap, float((best[0] - best[1]) / logits.abs().max()))
    return out.sequences[0, len(prompt):].tolist(), gap


def make(name, seed):
    folder = os.path.join(HERE, name)
    base = AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model"), dtype=torch.float32,
                                                attn_implementation="eager")
    model = PeftModel.from_pretrained(base, os.path.join(folder, "adapter")).eval()
    model.generation_config.eos_token_id = None
    gen = np.random.default_rng(seed)
    cases, dropped = [], 0
    while len(cases) < PROMPTS:
        prompt = gen.integers(0, base.config.vocab_size, LENGTHS[len(cases)]).tolist()
        ids, gap = continue_greedily(model, prompt)
        if gap < GAP:
            dropped += 1
            continue
        cases.append({"prompt": prompt, "completion": ids})
    value = {"generator": "tests/golden/make_generate.py", "seed": seed, "left_out": dropped,
             "gap": GAP, "torch": torch.__version__, "transformers": transformers.__version__,
             "peft": peft.__version__, "cases": cases}
    os.makedirs(os.path.join(HERE, "generate"), exist_ok=True)
    with open(os.path.join(HERE, "generate", name + ".json"), "w") as f:
        head = json.dumps({k: v for k, v in value.items() if k != "cases"}, indent=1)
        rows = ",\n  ".join(json.dumps(c) for c in cases)
        f.write(head[:-2] + ',\n "cases": [\n  ' + rows + "]\n}\n")
    print(f"{name}: {len(cases)} prompts, {dropped} left out")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name, seed in MODELS.items():
        make(name, seed)


if __name__ == "__main__":
    main()
