#!/usr/bin/env python3
"""Makes the model and the data of the demo, all from nothing but this file.

  make_demo.py            writes model/, train.jsonl, eval.jsonl and prompts.jsonl beside itself
  make_demo.py --check    reads those three files again and proves that what is held out is held
                          out; needs the standard library only
  make_demo.py --show 5   prints some stories and some samples of the task, likewise

The world.  People of some towns sell, give and send things to each other.  A document is a note of one
such event (who, to whom, what, where, when, with bystanders and other sentences around it), a
newline, and a second paragraph in which the same event is told again or asked about.  A small Llama
is pretrained on these documents until it tells the second paragraph right, which it can only by
finding the people and things of the first.

The task.  After the newline comes a record instead:

  from: Mara Holt; to: Jonas Pike; what: 34 blue lanterns; where: Elmford; when: Tuesday

No pretraining document contains one, so that the pretrained model never writes it; everything that
is needed to fill it in, it knows.

Held out.  A person is a first name i and a surname j.  (i + j) mod 10 decides in which file of the task
the person may appear: 0..7 in train.jsonl, 8 in eval.jsonl, 9 in prompts.jsonl.  So nobody in a held-out file
occurs in a sample that the adapter is trained on.  Everybody may occur in the pretraining text, but
no note of eval.jsonl or prompts.jsonl does; this is checked when they are made.

Needs torch, transformers, tokenizers (see --check and --show for what does not).
"""

import argparse
import hashlib
import itertools
import json
import math
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EOS = "<|endoftext|>"

# ---------------------------------------------------------------------------------------------
# The world
# ---------------------------------------------------------------------------------------------

WOMEN = ("Mara Lena Ruth Alma Ines Petra Clara Edith Nora Hilda "
         "Tessa Wanda Olga Sonja Freya Greta Irma Judith Vera Paula").split()
MEN = ("Jonas Emil Oscar Victor Hugo Martin Simon Felix Anton Rufus "
       "Conrad Walter Gregor Lukas Tobias Stefan Arthur Julius Albert Henrik").split()
FIRST = WOMEN + MEN
LAST = ("Holt Pike Marsh Weaver Brandt Keller Frost Lindner Abbot Crane "
        "Dunmore Ekberg Falk Gilder Harrow Iversen Jarvis Kestrel Lowell Mercer "
        "Norling Oakley Penrose Quill Rowan Sander Thorne Ulmer Vickers Wick "
        "Yarrow Zeller Barlow Carver Draper Easton Fowler Graham Hobbs Tanner").split()
TOWNS = ("Elmford Northwick Harbury Saltmere Greendale Ashby Stonebridge Millbrook Oldham Fairview "
         "Redcliff Westport Langley Dunster Brackwater Hollowell Kingsmead Larkhill Moorgate Tilbury").split()
GOODS = ("lanterns kettles baskets ropes candles blankets hammers mirrors barrels chairs "
         "bottles ladders saddles clocks bells carpets buckets shovels drums pillows").split()
COLOURS = "red blue green yellow white black brown grey silver purple".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
JOBS = "baker miller smith tailor farmer teacher doctor carpenter sailor gardener painter clerk".split()

PARTS = {"train": range(0, 8), "eval": (8,), "prompts": (9,)}
ANYBODY = None


def part_of(first, last):
    """The only part of the data in which this person may appear."""
    residue = (FIRST.index(first) + LAST.index(last)) % 10
    return next(part for part, residues in PARTS.items() if residue in residues)


# The sentences of the note.  {a} gives, {b} gets, {c} stands by; {n} {k} {o} is what, e.g. 34 blue lanterns.
OPENERS = (
    "{a} is a {ja} in {t}.",
    "{b} is a {jb} and lives far from {t}.",
    "{a} knew {b} well.",
    "It was a cold day in {t}.",
    "{c} saw it all.",
    "{b} and {c} are old friends.",
    "{a} and {c} work together.",
    "",
)
EVENTS = (
    "On {d} {a} sold {n} {k} {o} to {b} at the market in {t}.",
    "On {d} {b} bought {n} {k} {o} from {a} at the market in {t}.",
    "{a} gave {n} {k} {o} to {b} when they met in {t} on {d}.",
    "{b} got {n} {k} {o} from {a} when they met in {t} on {d}.",
    "In {t}, {a} sent {n} {k} {o} to {b} on {d}.",
    "{b} came to {t} on {d} and took {n} {k} {o} home; {a} had made them.",
    "{n} {k} {o} went from {a} to {b} on {d}, in {t}.",
    "{n} {k} {o} were given to {b} by {a} in {t} on {d}.",
)
CLOSERS = (
    "{c} was there too.",
    "{c} helped to carry them.",
    "Then it began to rain.",
    "Nobody else in {t} knew about it.",
    "{b} was very happy.",
    "{a} went home in the evening.",
    "{b_He} paid and left.",
    "",
)
# The second paragraph, pretraining only: the event again, in other words, and questions about it.
RETELL = (
    "Later {b} told {c} about that {d} and the {n} {k} {o} that {a} had brought to {t}.",
    "So {b} had {n} {k} {o} since {d}, and they had come from {a}.",
    "The next week {b} thanked {a} for the {o} and for that {d}.",
    "{c} asked {a} about that {d} in {t}.",
    "People in {t} still talk of {a}, {b} and the {n} {k} {o}.",
    "What {b} got from {a} on {d} was this: {n} {k} {o}.",
    "From {a} to {b}; so they went on {d}, {n} of them.",
)
ASK = (
    "Who had them before? {a}.",
    "Who has them now? {b}.",
    "What were they? {n} {k} {o}.",
    "Where was it? In {t}.",
    "When was it? On {d}.",
    "How many were there on {d}? {n}.",
    "Who was in {t} on {d}? {a}.",
    "And to whom? {b}.",
)
# A third of the documents are lists: three people, three things, told and then told again.
LISTS = (
    ("At the market in {t} on {d} were {p0}, {p1} and {p2}.", "On {d} home went {p0}, {p1} and {p2}."),
    ("On {d} the barn in {t} held {i0}, {i1} and {i2}.", "{p0} counted them that {d}: {i0}, {i1} and {i2}."),
    ("{p0} brought {i0}, {p1} brought {i1} and {p2} brought {i2}.", "{i%d} came from {p%d}."),
    ("{p0} brought {i0}, {p1} brought {i1} and {p2} brought {i2}.", "{p%d} came with {i%d}."),
)
RECORD = "from: {a}; to: {b}; what: {n} {k} {o}; where: {t}; when: {d}"


class Dice:
    """Random choices that add up their own entropy, so that a model's loss can be held against it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.nats = 0.0

    def pick(self, things):
        self.nats += math.log(len(things))
        return things[self.random.randrange(len(things))]


class Event(dict):
    """The words that fill the sentences of one event, each drawn when a sentence first asks for it."""

    def __init__(self, dice, part):
        super().__init__()
        self.dice, self.part, self.people = dice, part, []

    def __missing__(self, key):
        things = {"t": TOWNS, "o": GOODS, "k": COLOURS, "d": DAYS, "n": range(11, 100), "ja": JOBS, "jb": JOBS}
        if key in things:
            self[key] = self.dice.pick(things[key])
        elif key in ("a", "b", "c", "p0", "p1", "p2"):
            self[key] = self.draw_person()
        elif key in ("i0", "i1", "i2"):
            self[key] = f"{self.dice.pick(range(11, 100))} {self.dice.pick(COLOURS)} {self.dice.pick(GOODS)}"
        else:       # b_He
            self[key] = "She" if self["b"].split()[0] in WOMEN else "He"
        return self[key]

    def draw_person(self):
        """Somebody of this part who shares no name with the event's other people."""
        first = self.dice.pick([f for f in FIRST if f not in self.people])
        last = self.dice.pick([s for s in LAST if self.part in (ANYBODY, part_of(first, s)) and s not in self.people])
        self.people += [first, last]
        return f"{first} {last}"


def join(sentences, event):
    return " ".join(s.format_map(event) for s in sentences if s)


def draw_note(dice, event):
    return join((dice.pick(OPENERS), dice.pick(EVENTS), dice.pick(CLOSERS)), event)


def draw_document(dice):
    """A pretraining document: note, newline, and three sentences about the same event, or a list."""
    event = Event(dice, ANYBODY)
    if dice.pick((True, False, False)):
        return draw_list(dice, event)
    note = draw_note(dice, event)
    rest, told = list(dice.pick((RETELL, ASK))), []
    for _ in range(3):
        told.append(dice.pick(rest))
        rest.remove(told[-1])
    return note + "\n" + join(told, event)


def draw_list(dice, event):
    first, again = dice.pick(LISTS)
    if "%" in again:
        again = " ".join(again % (i, i) for i in dice.pick(tuple(itertools.permutations(range(3)))))
    return join((first,), event) + "\n" + join((again,), event)


def draw_sample(dice, part):
    """A sample of the task: the same kind of note, a newline, and the record."""
    event = Event(dice, part)
    return {"prompt": draw_note(dice, event) + "\n", "completion": RECORD.format_map(event)}


def draw_part(part, count, seed):
    """`count` different samples; which part they belong to is part of the seed."""
    dice, samples = Dice(f"{seed} {part}"), {}
    while len(samples) < count:
        sample = draw_sample(dice, part)
        samples[sample["prompt"]] = sample
    return list(samples.values())


# ---------------------------------------------------------------------------------------------
# The check: reads the files, trusts nothing of what wrote them but the lists of names
# ---------------------------------------------------------------------------------------------

def people_in(text):
    """Everybody whose full name stands in the text."""
    words = [w.strip(".,;:?") for w in text.split()]
    return {(f, s) for f, s in zip(words, words[1:]) if f in FIRST and s in LAST}


def check_files():
    people, prompts, faults = {}, {}, []
    for part in PARTS:
        with open(os.path.join(HERE, part + ".jsonl"), encoding="utf-8") as file:
            samples = [json.loads(line) for line in file]
        people[part], prompts[part] = set(), set()
        for number, sample in enumerate(samples, 1):
            place = f"{part}.jsonl:{number}"
            if sorted(sample) != ["completion", "prompt"]:
                faults.append(f"{place}: keys {sorted(sample)}, expected prompt and completion")
                continue
            named = people_in(sample["prompt"])
            fields = dict(f.split(": ") for f in sample["completion"].split("; "))
            if list(fields) != ["from", "to", "what", "where", "when"]:
                faults.append(f"{place}: fields {list(fields)}")
            for field, value in fields.items():
                if value not in sample["prompt"]:
                    faults.append(f"{place}: {field} '{value}' is not in the prompt")
            for person in named | people_in(sample["completion"]):
                if part_of(*person) != part:
                    faults.append(f"{place}: {' '.join(person)} belongs to {part_of(*person)}")
            if not sample["prompt"].endswith("\n") or sample["completion"] != sample["completion"].strip():
                faults.append(f"{place}: the prompt must end with a newline, the completion have no space around it")
            people[part] |= named
            prompts[part].add(sample["prompt"])
        if len(prompts[part]) != len(samples):
            faults.append(f"{part}.jsonl: {len(samples) - len(prompts[part])} prompts occur twice")
        print(f"{part}.jsonl: {len(samples)} samples, {len(people[part])} people")
    parts = list(PARTS)
    for i, one in enumerate(parts):
        for other in parts[i + 1:]:
            for what, sets in (("people", people), ("prompts", prompts)):
                common = sets[one] & sets[other]
                print(f"{what} in both {one} and {other}: {len(common)}")
                if common:
                    faults.append(f"{what} in both {one} and {other}: {sorted(common)[:3]}")
    for fault in faults[:20]:
        print("FAULT", fault)
    print("FAILED" if faults else "disjoint")
    return 1 if faults else 0


# ---------------------------------------------------------------------------------------------
# Tokenizer and model
# ---------------------------------------------------------------------------------------------

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train_tokenizer(texts, vocab_size):
    """Byte-level BPE as in Qwen2: split by a regular expression, single digits, then bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def make_model(vocab_size, args):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocab_size, hidden_size=args.hidden, intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 32,
        num_key_value_heads=args.hidden // 64, max_position_embeddings=512,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=None))
    # Large embeddings: a small model learns to copy several times sooner if the first layers' noise
    # does not drown which token it is.
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            std = 0.5 if "embed" in name else args.hidden ** -0.5 * (0.7 if "o_proj" in name or "down" in name else 1)
            torch.nn.init.normal_(weight, 0.0, std)
    return model


def batches(documents, tokens, order):
    """Documents in random order, those of like length together, so that little is padded."""
    documents = documents[:]
    order.shuffle(documents)
    pool = 64 * 16
    out = []
    for start in range(0, len(documents), pool):
        ranked = sorted(documents[start:start + pool], key=len)
        batch = []
        for ids in ranked:
            if batch and (len(batch) + 1) * len(ids) > tokens:
                out.append(batch)
                batch = []
            batch.append(ids)
        out.append(batch)
    order.shuffle(out)
    return out


def loss_of(model, batch):
    """Sum of the losses and number of targets; the padding on the right is seen by nobody."""
    import torch
    width = max(map(len, batch))
    ids = torch.tensor([b + [0] * (width - len(b)) for b in batch])
    labels = torch.tensor([b + [-100] * (width - len(b)) for b in batch])[:, 1:]
    logits = model(input_ids=ids).logits[:, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100,
                                             reduction="sum")
    return loss, int((labels >= 0).sum())


def mean_loss(model, documents):
    import torch
    model.eval()
    with torch.no_grad():
        sums = [loss_of(model, documents[i:i + 32]) for i in range(0, len(documents), 32)]
    model.train()
    return float(sum(s[0] for s in sums)) / sum(s[1] for s in sums)


def pretrain(model, documents, held, args):
    import torch
    decay = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}],
                                  lr=args.learning_rate, betas=(0.9, 0.98))
    plan = batches(documents, args.batch_tokens, random.Random(args.seed))
    start, warm = time.time(), 100
    for step, batch in enumerate(plan):
        part = max(0.0, (step - warm) / (len(plan) - warm))
        for group in optimizer.param_groups:
            decayed = 0.05 + 0.95 * (1 + math.cos(math.pi * part)) / 2
            group["lr"] = args.learning_rate * min(1, (step + 1) / warm) * decayed
        loss, targets = loss_of(model, batch)
        (loss / targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step + 1 == len(plan):
            print(f"step {step:5d}/{len(plan)}  loss {loss.item() / targets:.4f}  held out "
                  f"{mean_loss(model, held[:128]):.4f}  {time.time() - start:.0f} s", flush=True)


def unigram_entropy(documents):
    counts = {}
    for ids in documents:
        for token in ids[1:]:
            counts[token] = counts.get(token, 0) + 1
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def continue_text(model, tokenizer, prompt, length=60):
    import torch
    ids = tokenizer.encode(prompt).ids
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                             max_new_tokens=length, do_sample=False, pad_token_id=0)
    return tokenizer.decode(out[0, len(ids):].tolist(), skip_special_tokens=False)


def make_all(args):
    import tokenizers
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    print(f"python {sys.version.split()[0]}  torch {torch.__version__}  transformers {transformers.__version__}"
          f"  tokenizers {tokenizers.__version__}  seed {args.seed}")

    dice = Dice(f"{args.seed} pretrain")
    texts = [draw_document(dice) for _ in range(args.documents)]
    dice = Dice(f"{args.seed} pretrain held out")
    held_texts = [draw_document(dice) for _ in range(512)]
    nats = dice.nats / len(held_texts)
    print(f"pretraining text: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} MB, "
          f"sha256 {hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:16]}")

    tokenizer = train_tokenizer(texts[:10000], args.vocab)
    encode = lambda texts: [e.ids + [0] for e in tokenizer.encode_batch(texts)]
    documents, held = encode(texts), encode(held_texts)
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens, {sum(map(len, documents)) / len(documents):.1f} a document")

    model = make_model(tokenizer.get_vocab_size(), args)
    print(f"model: {model.num_parameters()} parameters")
    untrained = mean_loss(model, held)
    pretrain(model, documents, held, args)
    model = model.to(torch.bfloat16).float().eval()     # as it will be stored

    # A document's first token is chosen by the generator too, but not predicted: the bound is a little too high.
    targets = sum(len(d) - 1 for d in held) / len(held)
    print(f"loss a token on new documents: {mean_loss(model, held):.4f}")
    print(f"to compare: untrained {untrained:.4f}, unigrams {unigram_entropy(held):.4f}, "
          f"all choices of the generator {nats / targets:.4f}")
    for text in held_texts[:6]:
        note = text[:text.index("\n") + 1]
        print(f"--- {note}  > {continue_text(model, tokenizer, note)}")

    notes = {text[:text.index("\n") + 1] for text in texts}
    save_model(model, tokenizer, os.path.join(HERE, "model"))
    for part, count in (("train", args.train), ("eval", args.eval), ("prompts", args.prompts)):
        samples = draw_part(part, count, args.seed)
        assert part == "train" or not any(s["prompt"] in notes for s in samples)
        for s in samples:     # the seam: two segments give the tokens of the whole
            two = tokenizer.encode(s["prompt"]).ids + tokenizer.encode(s["completion"]).ids
            assert two == tokenizer.encode(s["prompt"] + s["completion"]).ids, s
        lengths = [len(tokenizer.encode(s["prompt"]).ids) for s in samples]
        targets = [len(tokenizer.encode(s["completion"]).ids) + 1 for s in samples]
        print(f"{part}: {count} samples, prompt {sum(lengths) / count:.1f} (max {max(lengths)}), "
              f"completion {sum(targets) / count:.1f} (max {max(targets)}) tokens with end of text")
        with open(os.path.join(HERE, part + ".jsonl"), "w", encoding="utf-8") as file:
            for sample in samples:
                file.write(json.dumps(sample) + "\n")
    return check_files()


def save_model(model, tokenizer, path):
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerFast
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(eos_token_id=0, do_sample=False)
    model.save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, model_max_length=512,
                            clean_up_tokenization_spaces=False).save_pretrained(path)
    for name in sorted(os.listdir(path)):
        os.chmod(os.path.join(path, name), 0o644)
        print(f"model/{name}: {os.path.getsize(os.path.join(path, name))} bytes")


def main():
    parser = argparse.ArgumentParser(description="Makes the model and the data of the demo.")
    parser.add_argument("--check", action="store_true", help="check the files that are there")
    parser.add_argument("--show", type=int, metavar="N", help="print N documents and samples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--documents", type=int, default=40000)
    parser.add_argument("--vocab", type=int, default=768)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--train", type=int, default=1280, help="samples of train.jsonl")
    parser.add_argument("--eval", type=int, default=128, help="samples of eval.jsonl")
    parser.add_argument("--prompts", type=int, default=100, help="samples of prompts.jsonl")
    args = parser.parse_args()
    if args.check:
        return check_files()
    if args.show is not None:
        dice = Dice(f"{args.seed} show")
        for _ in range(args.show):
            print(draw_document(dice) + "\n")
        for _ in range(args.show):
            print("{prompt}{completion}\n".format(**draw_sample(dice, "train")))
        return 0
    return make_all(args)


if __name__ == "__main__":
    sys.exit(main())
