#!/usr/bin/env python3
"""Makes tests/golden/lora_match.json: which modules PEFT adapts for a LoRA configuration, with which
rank, alpha and scale.

    make_lora_match.py [OUTPUT]              the table of chosen cases (and some random ones)
    make_lora_match.py --random N SEED OUTPUT   N random cases, for a longer comparison
    make_lora_match.py --check CASES DIR     load the adapters DIR/0, DIR/1, ... that test_lora_match
                                             wrote for CASES into PEFT: same modules, ranks, scales

Each case is asked of PEFT in two ways that must agree: a model is really adapted (inject), and its
matching functions are called on the names of the linears. The first knows more errors, the second
is asked where the first refuses a configuration because it also names modules that are no linears.
adze refuses, on top of what PEFT refuses, entries that match nothing; "refused" counts these too.

A case holds the configuration as the text of an adapter_config.json; "map" with a letter for each
linear in model order ('.': not adapted), which is a number of "kinds": [r, alpha, scale].
"""

import json
import random
import re
import sys
import warnings

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import _maybe_include_all_linear_layers, check_target_module_exists
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS
from peft.utils.other import get_pattern_key
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS = 11
SHORT = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NAMES = ["self_attn." + s for s in SHORT[:4]] + ["mlp." + s for s in SHORT[4:]]
LINEARS = [f"model.layers.{i}.{n}" for i in range(LAYERS) for n in NAMES]


def make_model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=8, intermediate_size=12, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=16))


def of_layers(model, name="default"):
    return {path.removeprefix("base_model.model."): (m.r[name], m.lora_alpha[name], m.scaling[name])
            for path, m in model.named_modules() if isinstance(m, LoraLayer) and m.r}


def by_injection(kw):
    model = get_peft_model(make_model(), LoraConfig(task_type="CAUSAL_LM", **kw))
    return of_layers(model)


def by_functions(kw):
    config = LoraConfig(task_type="CAUSAL_LM", **kw)
    if config.target_modules is None:
        config.target_modules = set(DEFAULTS["llama"])
    config = _maybe_include_all_linear_layers(config, make_model())
    found = {}
    for path in LINEARS:
        if check_target_module_exists(config, path):
            r = config.rank_pattern.get(get_pattern_key(config.rank_pattern, path), config.r)
            a = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, path), config.lora_alpha)
            found[path] = (r, a, a / r ** 0.5 if config.use_rslora else a / r)
    return found


def is_end(path, name):
    return path == name or path.endswith("." + name)


def has_idle_entry(kw, found):
    """Whether an entry of the configuration matches nothing."""
    targets, excludes = kw.get("target_modules"), kw.get("exclude_modules")
    if targets is None:
        targets = DEFAULTS["llama"]
    for entries in (targets, excludes):
        if isinstance(entries, list):
            if any(not any(is_end(p, e) for p in LINEARS) for e in entries):
                return True
        elif entries and entries.lower() != "all-linear":
            if not any(re.fullmatch(entries, p) for p in LINEARS):
                return True
    layers, names = kw.get("layers_to_transform"), kw.get("layers_pattern")
    if layers:
        ends = [p for p in LINEARS if p not in targets and any(is_end(p, e) for e in targets)]
        for layer in [layers] if isinstance(layers, int) else layers:
            if not any(f".layers.{layer}." in p for p in ends):
                return True
        names = [names] if isinstance(names, str) else names or []
        first = {}
        for p in ends:
            for n in names:
                if re.match(rf"(?:^|.*?\.){n}\.(\d+)\.", p):
                    first[p] = n
                    break
        if any(n not in first.values() for n in names):
            return True
    for pattern in ("rank_pattern", "alpha_pattern"):
        for key in kw.get(pattern) or {}:
            if not any(re.match(rf"(.*\.)?({key})$", p) for p in found):
                return True
    return False


def make_case(kw):
    why, found = None, {}
    try:
        found = by_functions(kw)
    except Exception as e:                               # noqa: BLE001 - whatever PEFT raises
        why = type(e).__name__
    try:
        injected = by_injection(kw)
        assert injected == found, (kw, injected, found)
    except AssertionError:
        raise
    except Exception as e:                               # noqa: BLE001
        # Modules that are no linears: adze looks at linears only.
        if "is not supported" not in str(e):
            why = why or type(e).__name__
    if not why and not found:
        why = "no match"
    if not why and has_idle_entry(kw, found):
        why = "idle entry"
    case = {"config": json.dumps({"peft_type": "LORA", **kw})}
    if why:
        return {**case, "refused": why}
    kinds = sorted(set(found.values()))
    letters = "".join(chr(97 + kinds.index(found[p])) if p in found else "." for p in LINEARS)
    return {**case, "map": letters, "kinds": kinds}


CHOSEN = [
    {},
    dict(target_modules=["q_proj", "v_proj"]),
    dict(target_modules=SHORT, r=4, lora_alpha=32),
    dict(target_modules="all-linear"),
    dict(target_modules="ALL-Linear", use_rslora=True, r=16, lora_alpha=16),
    dict(target_modules=["all-linear"]),
    dict(target_modules=["proj"]),
    dict(target_modules=["q_proj", "w_proj"]),
    dict(target_modules=["self_attn.q_proj", "mlp.down_proj"]),
    dict(target_modules=["1.self_attn.q_proj"]),
    dict(target_modules=["10.self_attn.q_proj", "0.self_attn.q_proj"]),
    dict(target_modules=["model.layers.3.mlp.up_proj"]),
    dict(target_modules=["layers.3.mlp.up_proj", "model.layers.4.mlp.up_proj"]),
    dict(target_modules=["attn.q_proj"]),
    dict(target_modules="q_proj"),
    dict(target_modules=".*q_proj"),
    dict(target_modules=r".*\.(q|v)_proj"),
    dict(target_modules=r"model\.layers\.\d\.self_attn\.[qk]_proj"),
    dict(target_modules=r".*layers\.(?:[0-3]|10)\..*_proj"),
    dict(target_modules=r".*(?<!down)_proj"),
    dict(target_modules=r"(?i).*Q_PROJ"),
    dict(target_modules=r".*\.(?P<a>[a-z])_proj"),
    dict(target_modules=r"model\.layers\.(\d)\..*"),
    dict(target_modules=r"model\.layers\.([0-9]+)\.self_attn\..*$"),
    dict(target_modules=r"^model.*q_proj\Z"),
    dict(target_modules=".*"),
    dict(target_modules=r".*\.(q|v_proj"),
    dict(target_modules=r".*\h"),
    dict(target_modules=r".*q_proj|.*v_proj"),
    dict(target_modules=r"q_proj|.*v_proj"),
    dict(target_modules=["q_proj", "v_proj"], exclude_modules=["3.self_attn.q_proj"]),
    dict(target_modules=["q_proj", "v_proj"], exclude_modules=["self_attn.v_proj"]),
    dict(target_modules=["q_proj"], exclude_modules=["q_proj"]),
    dict(target_modules="all-linear", exclude_modules=["down_proj", "model.layers.0.mlp.up_proj"]),
    dict(target_modules="all-linear", exclude_modules=r".*\.mlp\..*"),
    dict(target_modules="all-linear", exclude_modules=r"mlp"),
    dict(target_modules=r".*q_proj", exclude_modules=r".*layers\.[02468]\..*"),
    dict(exclude_modules=["7.self_attn.v_proj"]),
    dict(target_modules=["q_proj"], layers_to_transform=[0, 10]),
    dict(target_modules=["q_proj"], layers_to_transform=1),
    dict(target_modules=["q_proj"], layers_to_transform=[11]),
    dict(target_modules=["q_proj"], layers_to_transform=[3], layers_pattern="layers"),
    dict(target_modules=["q_proj"], layers_to_transform=[3], layers_pattern=["h", "layers"]),
    dict(target_modules=["q_proj"], layers_to_transform=[3], layers_pattern=["layers", r"model\.layers"]),
    dict(target_modules=["q_proj"], layers_to_transform=[3], layers_pattern=[r"model\.layers"]),
    dict(target_modules=["q_proj"], layers_to_transform=[3], layers_pattern="l.*s"),
    dict(target_modules=["q_proj"], layers_pattern="layers"),
    dict(target_modules=".*q_proj", layers_to_transform=[3]),
    dict(target_modules="all-linear", layers_to_transform=[3]),
    dict(target_modules=["q_proj", "model.layers.5.mlp.up_proj"], layers_to_transform=[1]),
    dict(target_modules=["q_proj", "k_proj"], layers_to_transform=[1, 2], exclude_modules=["1.self_attn.k_proj"]),
    dict(layers_to_transform=[2, 4]),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 4}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"k_proj": 4}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"^q_proj": 4}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"^model.layers.1.self_attn.q_proj": 4}),
    dict(target_modules=["q_proj", "v_proj"], alpha_pattern={r"^model.*v_proj": 3.5}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"1.self_attn.q_proj": 4, "q_proj": 2}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 2, "1.self_attn.q_proj": 4}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={r"layers\.[0-4]\.self_attn\.[qv]_proj": 16},
         alpha_pattern={"v_proj": 1, r".*": 64}),
    dict(target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj|v_proj": 3}, use_rslora=True),
    dict(target_modules="all-linear", rank_pattern={"proj": 3}),
    dict(target_modules="all-linear", rank_pattern={r"(up|down)_proj": 3}, alpha_pattern={"mlp.up_proj": 0.5}),
    dict(target_modules="all-linear", rank_pattern={r"(\w)_proj": 5}),
    dict(target_modules="all-linear", rank_pattern={r"(q": 5}),
    dict(target_modules=SHORT, r=64, lora_alpha=16.5, use_rslora=True,
         rank_pattern={r"layers.1": 5}),
    dict(target_modules=SHORT, rank_pattern={r"layers\.1\..*": 5, r"layers\.1.*": 6}),
    dict(target_modules=[p for p in LINEARS if ".up" in p] + [p for p in LINEARS if ".q_" in p]),
    dict(target_modules=[p for p in LINEARS if ".up" in p] + ["q_proj"], layers_to_transform=[1]),
]


def draw_names(rng):
    def one():
        path = rng.choice(LINEARS)
        parts = path.split(".")
        return rng.choice([rng.choice(SHORT), ".".join(parts[rng.randrange(len(parts) - 1):]),
                           ".".join(parts[-2:])])
    return list(dict.fromkeys(one() for _ in range(rng.randint(1, 5))))


def draw_regex(rng):
    layer = rng.choice([r"\d", r"\d+", "[0-5]", "(?:1|10)", "(1|2|3)", ".*", "[^3]+", "1?[02468]"])
    name = rng.choice(["q_proj", "[qkv]_proj", ".*_proj", "(up|down)_proj", r"\w+", "(?!q).*", "[^q]_proj"])
    return rng.choice([rf"model\.layers\.{layer}\.(self_attn|mlp)\.{name}", rf".*\.{name}",
                       rf"model.layers.{layer}.+{name}$", rf"(.*\.)?{layer}\..*\.{name}", name])


def draw_key(rng):
    return rng.choice([rng.choice(SHORT), rng.choice(NAMES), rng.choice(LINEARS), draw_regex(rng),
                       "^" + rng.choice(LINEARS), f"{rng.randrange(13)}." + rng.choice(NAMES),
                       rf"layers\.[{rng.randrange(5)}-9]\..*", r"[qv]_proj", "_proj", ".*"])


def draw_case(rng):
    kw = {}
    how = rng.random()
    if how < 0.55:
        kw["target_modules"] = draw_names(rng)
    elif how < 0.8:
        kw["target_modules"] = draw_regex(rng)
    elif how < 0.9:
        kw["target_modules"] = "all-linear"
    elif how < 0.93:
        kw["target_modules"] = rng.sample(LINEARS, rng.randint(15, 30))
    if rng.random() < 0.3:
        kw["exclude_modules"] = draw_names(rng) if rng.random() < 0.5 else draw_regex(rng)
    if not isinstance(kw.get("target_modules"), str) and rng.random() < 0.35:
        kw["layers_to_transform"] = rng.sample(range(LAYERS + (rng.random() < 0.1)), rng.randint(1, 5))
        if rng.random() < 0.4:
            kw["layers_pattern"] = rng.choice(["layers", ["layers"], [r"model\.layers"], "l[a-z]*"])
    for pattern in ("rank_pattern", "alpha_pattern"):
        if rng.random() < 0.4:
            kw[pattern] = {draw_key(rng): rng.choice([1, 2, 4, 16, 3]) for _ in range(rng.randint(1, 3))}
    kw["r"], kw["lora_alpha"] = rng.choice([1, 2, 8, 64]), rng.choice([1, 8, 16, 2.5])
    kw["use_rslora"] = rng.random() < 0.3
    return kw


def draw_cases(n, seed, most_refused):
    rng, cases, refused = random.Random(seed), [], 0
    while len(cases) < n:
        case = make_case(draw_case(rng))
        refused += "refused" in case
        if "refused" not in case or refused <= most_refused * n:
            cases.append(case)
    return cases


def write(path, cases):
    head = {"generator": "make_lora_match.py", "peft": peft.__version__,
            "transformers": transformers.__version__, "layers": LAYERS}
    with open(path, "w") as f:
        f.write(json.dumps(head)[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
    n = sum("refused" in c for c in cases)
    print(f"{path}: {len(cases)} cases, {n} of them refused")


def check(cases_path, folder):
    n = 0
    for i, case in enumerate(json.load(open(cases_path))["cases"]):
        if "refused" in case:
            continue
        model = PeftModel.from_pretrained(make_model(), f"{folder}/{i}")
        found = of_layers(model)
        expected = {p: tuple(case["kinds"][ord(c) - 97]) for p, c in zip(LINEARS, case["map"]) if c != "."}
        assert found == expected, (i, case["config"], found, expected)
        n += 1
    print(f"{n} adapters loaded")


def main(argv):
    warnings.simplefilter("ignore")
    if argv[:1] == ["--check"]:
        check(argv[1], argv[2])
    elif argv[:1] == ["--random"]:
        write(argv[3], draw_cases(int(argv[1]), int(argv[2]), 0.3))
    else:
        cases = [make_case(kw) for kw in CHOSEN] + draw_cases(40, 1, 0.25)
        write(argv[0] if argv else "lora_match.json", cases)


if __name__ == "__main__":
    main(sys.argv[1:])
