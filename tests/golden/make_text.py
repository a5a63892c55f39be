#!/usr/bin/env python3
"""Makes tests/golden/text/: tokenizers, hard text, and the ids that the tokenizers library gives.

What: small byte-level BPE tokenizers in the layouts that published models use, trained on the
sentences below; corpus.jsonl, one hard string a line; and for each layout LAYOUT.ids.json with the
library's ids and decoded texts. Why: adze's tokenizer must give the same ids. README.md beside
this says what each file holds.

    python3 make_text.py

No random number is used, except Python's generator with a fixed seed for the mixed strings.
Characters that Unicode 15 or later added are kept out on purpose: the library and PCRE2 carry
tables of different age, see README.md.
"""

import json
import os
import random
import shutil
import sys
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"       # the trainer's order of ties

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "text")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# What the tokenizers learn from: enough repetition that merges of several bytes and words arise.
SENTENCES = [
    "The quick brown adapter trains while the base model never changes.",
    "We're sure that it's theirs, they've said so and I'll believe it; he'd said I'm right.",
    "for (int i = 0; i < count; i++) { total += values[i]; }  /* sum */",
    "def train(model, data):\n    for batch in data:\n        loss = model(batch)\n"
    "    return loss\n",
    "See https://example.org/path/to/page?query=value&other=12 for more than 3,141 examples.",
    "In 2024 there were 365.25 days, 12 months and 1000000 things to do before 23:59.",
    "Die Größe der Straße überrascht: Äpfel, Öl und Übermut kosten fünf Groschen.",
    "Aufſatz, Auſſaat, Mühſal, Trübſal, Labſal, Abſatz, Hauptſaal, ſalz und wirkſam.",
    "L'été dernier, à la forêt, un garçon naïf a goûté des crêpes près du château.",
    "El niño comió piñas mañana; ¿cuándo volverá el pingüino? ¡Pronto!",
    "Příliš tichý kůň pil vodu, żółta gęś śpiewała, çok güzel bir gün, ığdır.",
    "Быстрый поезд идёт через зелёный лес, и дети машут ему рукой.",
    "Το γρήγορο καράβι ταξιδεύει προς τη θάλασσα κάθε πρωί.",
    "今天天气很好，我们一起去公园看花，然后喝茶。",
    "今日はとても良い天気なので、公園へ散歩に行きましょう。カメラも持って。",
    "오늘은 날씨가 좋아서 우리는 공원에 갔습니다. 한국어 문장입니다.",
    "في الصباح الباكر ذهبنا إلى السوق واشترينا الخبز والتمر.",
    "בבוקר הלכנו אל השוק וקנינו לחם, גבינה ופירות טריים.",
    "วันนี้อากาศดีมาก เราไปเดินเล่นที่สวนสาธารณะกัน",
    "आज मौसम बहुत अच्छा है, हम बगीचे में घूमने जाएँगे।",
    "আজ আবহাওয়া খুব ভালো, আমরা বাগানে বেড়াতে যাব।",
    "இன்று வானிலை நன்றாக உள்ளது, நாங்கள் பூங்காவிற்குச் செல்வோம்.",
    "დღეს კარგი ამინდია და ჩვენ პარკში მივდივართ.",
    "Այսօր եղանակը լավ է, և մենք գնում ենք այգի։",
    "ዛሬ አየሩ ጥሩ ነው፤ ወደ መናፈሻ እንሄዳለን።",
    "Hôm nay trời đẹp, chúng tôi đi dạo ở công viên và uống cà phê.",
    "Smile 😀😃😄 and wave 👋🏽 with the family 👨‍👩‍👧‍👦 under the flags 🇩🇪🇫🇷🇯🇵.",
]


def scripts():
    """Plain text of many scripts and orders."""
    yield from SENTENCES
    yield "Hello, world!"
    yield "hello"
    yield " hello"
    yield "hello "
    yield "  hello  world  "
    yield "HELLO Hello hELLO"
    yield "Ελληνικά и русский and 中文 mixed混在text한국어混ぜるعربي"
    yield "שלום world שָׁלוֹם עֲלֵיכֶם"                      # Hebrew points
    yield "مُحَمَّدٌ كِتَابٌ ١٢٣ ۴۵۶"                            # Arabic marks, two kinds of digits
    yield "लड़का क़िला क़िला ज़ ज़ हिन्दी क्षत्रिय श्री"             # nukta composed, decomposed
    yield "ภาษาไทย น้ำ กำลัง ที่นี่ เก้าอี้ ๑๒๓"
    yield "ພາສາລາວ ខ្មែរ မြန်မာ བོད་ཡིག ᠮᠣᠩᠭᠣᠯ ꯃꯤꯇꯩ"
    yield "സ്വാഗതം ಕನ್ನಡ తెలుగు ਪੰਜਾਬੀ ગુજરાતી ଓଡ଼ିଆ සිංහල"
    yield "ᚠᚢᚦᚨᚱᚲ 𐍈𐌰𐌹 𓀀𓁐 𒀀𒁀 𐎀𐎁 ⴰⵣⵓⵍ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ"
    yield "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓯𝓪𝓷𝓬𝔂 𝟙𝟚𝟛 ｆｕｌｌｗｉｄｔｈ １２３ ㍿ ㎏"
    yield "ﬁne ﬂow oﬃce ﬅyle Ǆ ǅ ǆ ʰ ª º"
    yield "𠀀𠮷野家 𪜀 㐀 﨎 豈 更"                              # beyond the BMP, compatibility forms
    yield "Zażółć gęślą jaźń ŁÓDŹ ß ẞ ĳ Ŀ"
    yield "İstanbul ISPARTA ı I i İ"
    yield "ΌΣΟΣ όσος ΐ ΰ ᾳ ᾼ"
    yield "ーあいうえおｱｲｳｴｵ゛゜がが"
    yield "、。「」『』【】〜・…‥"


def normal_forms():
    """Composed and decomposed, in canonical order and not; NFC exclusions; singletons."""
    for s in ("café crème brûlée naïve Ångström", "ñandú año ÀÈÌÒÙ", "ệ ử ợ Ǘ ḉ ṩ",
              "Việt Nam đường phố", "한국어 각 값 뷁 ㄱㅏ", "ά ὒ ᾧ ῗ", "が ぱ ヴ ヷ", "й ё ї ѓ ќ"):
        yield unicodedata.normalize("NFC", s)
        yield unicodedata.normalize("NFD", s)
    yield "e\u0301 e\u0301\u0323 e\u0323\u0301 \u0301alone  \u0301 after space"
    yield "q\u0307\u0323 q\u0323\u0307 a\u0328\u0301 a\u0301\u0328 \u1e9b\u0323"
    yield "a\u0300\u0300\u0300 a\u0315\u0300\u05ae\u0301b o\u0308\u0304 \u022b"
    yield "\u212b \u212a \u2126 \u1fee \u0340 \u0341 \u0374 \u037e \u0387 \u2000\u2001 \u2329\u232a"
    yield "\u0958 \u095f \u09dc \u0a33 \u0b5c \u0f43 \u2adc \ufb1d \ufb2a \ufb4e \U0001d15e"
    yield "\u1100\u1161\u11a8 \u1100\u1161 \uac00\u11a8 \u1100 \u1161 \u11a8 \u1112\u1161\u11ab"
    yield "\u1100\u1161\u11a7 \ua960\u1161 \uac01\u11a8 \u1113\u1161"
    yield "\u0f71\u0f72 \u0f73 \u0f75 \u0dd9\u0dcf\u0dca \u0dda \u1025\u102e"
    yield "<\u0338 >\u0338 =\u0338 \u226e\u226f\u2260 \u2192\u0338"
    yield "\U00011131\U00011127 \U00011347\U0001133e \U000114b9\U000114ba"
    yield "a\u0301" * 30 + "x" + "\u0301\u0327" * 20
    yield "\uf900\uf901 \uf9d0 \U0002f800 \u2f00 \u3131"


def emoji():
    yield "😀😃😄😁😆"
    yield "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🏴‍☠️ 👁️‍🗨️"
    yield "🇩🇪🇫🇷🇯🇵🇺🇸 🇩 🇪🇪🇪"
    yield "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
    yield "1️⃣2️⃣#️⃣*️⃣ ☺☺️☺︎ ❤❤️"
    yield "👍🏻👍🏿👍 text👍text 👍 text"
    yield "🤷🏼‍♂️🤦‍♀️ 🧑‍🤝‍🧑"
    yield "→←↑↓ ✓✗ ★☆ ♠♥♦♣ ▀▄█ ─│┌┐ ∑∫√∞≠≤ ½⅓¼"
    yield "€£¥₹₿¢ ©®™ §¶†‡ «»‹› “”‘’ –—―"


def spaces():
    """Every kind of white space, what only looks like it, and long runs."""
    kinds = ("\t", "\n", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x1f", " ", "\x85", "\xa0",
             "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u200b", "\u2028",
             "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff")
    for i in range(0, len(kinds), 2):
        a, b = kinds[i], kinds[i + 1]
        yield f"x{a}y{a}{a}y {a}z{a} .{b}x{b}y{b}{b}y {b}z{b} .{a}{b}12{b}{a}!{a}{b}"
    yield "".join(kinds)
    yield "a".join(kinds)
    for n in (1, 2, 3, 4, 7, 16, 33, 100):
        yield "x" + " " * n + "y" + "\n" * n + "z" + "\t" * n + "end" + " " * n
    yield " " * 257
    yield "\n" * 130
    yield "\t" * 65 + "x"
    yield "line one\r\nline two\r\n\r\n  indented\r\n\ttab\r\rmac\n\runix"
    yield "a \n b  \n  c \t \n\t d\n \n \n\n e   \r\n  "
    yield "...\n\n!!!\r\n\r\n  ???\n   ;;;  \n"
    yield " \n"
    yield "\n "
    yield "  \n  \n"
    yield "x  "
    yield " "
    yield "  "
    yield "\n"
    yield "\r\n"
    yield "a\xa0b \xa0 c\xa0\xa0d  \xa0e \u3000 f"
    yield "if x:\n    y = 1\n\tz = 2\n        return  y\n"


def controls():
    yield "a\x00b\x00\x00c"
    yield "\x00"
    yield "\x01\x02\x03\x04\x05\x06\x07\x08\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17"
    yield "\x1b[31mred\x1b[0m \x7f\x7f \x80\x81\x9f"
    yield "zero\u200bwidth\u200cnon\u200djoiner\u2060word\ufeffbom"
    yield "\ufeffBOM first"
    yield "soft\u00adhyphen non\u2011breaking \u200elrm\u200frlm \u202aembed\u202c \u2066iso\u2069"
    yield "\ufffd \ufffe \uffff \U0001ffff \U0010ffff \ue000 \U000f0000"
    yield "\ufe0f \ufe0e \u034f \u061c \u17b4 \u115f\u1160 \u3164 \uffa0"
    yield "\U000f1234x \U00040000 \U00080000\U000c0000"     # lead bytes F1 to F3


def numbers():
    yield "1 12 123 1234 12345 123456 1234567 12345678 123456789 1234567890"
    yield "1234567890123456789012345678901234567890"
    yield "3.14159 -2.5e-10 1,000,000.00 0x1F 0b1010 1_000 1'000 50% $9.99 #1 1st 2nd"
    yield "a1b22c333d4444 x1 1x 12ab34"
    yield "٠١٢٣٤٥٦٧٨٩ ۰۱۲۳ ०१२३४ ১২৩ ๑๒๓ ༡༢༣ ၁၂၃ ０１２３４５"
    yield "𝟎𝟏𝟐 𝟘𝟙𝟚 𑁦𑁧𑁨 𞥐𞥑 Ⅷ ⅷ ↀ ½¾ x² x³ ₁₂ ①② ㉑ 一二三 〇〡〢 ㊀ 𐄇 ፩፪ ൰"
    yield "12½34 1²2 Ⅷ8 5٥5 1１1 1a½b"
    yield "2024-11-30T23:59:59.999Z 192.168.0.1 +49 (0)30 1234-567"


def contractions():
    yield "it's IT'S It'S don't DON'T we're WE'RE I've I'VE I'm I'M you'll YOU'LL he'd HE'D"
    yield "it’s don’t we’re I’m"
    yield "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'lL 'D 'x 'sx 'tx 'rex 'vex 'mx 'llx 'dx"
    yield "it'\u017f it'\u017fabc x'\u017f 'S\u017f '\u017f\u017f \u017f \u212a'\u212a '\u212am"
    yield "''s '''t 's's's 'd'd rock'n'roll o'clock 'tis l'été d'été 's's 'sS"
    yield "12's 12'S 's12 !'s .'t -'re\n's \n't\t're  's"
    yield "I'LLL I'l I'r I'v 'LL'L 'rE'Re can't've y'all'd've \u0149 'n"
    yield "'ＳＳ 'Ѕ 'ｓ 'ſt 'ﬅ 'ﬆ"


def code():
    yield "#include <stdio.h>\nint main(void)\n{\n\tprintf(\"%d\\n\", 1 << 3);\n\treturn 0;\n}\n"
    yield "https://user:pass@example.org:8080/a/b.c?x=1&y=%20z#frag mailto:me@example.org"
    yield "{\"key\": [1, 2.5, null, true], \"näme\": \"v\\u00e4lue\\n\"}"
    yield "<html><body class=\"x\">&nbsp;&lt;</body></html>"
    yield "SELECT * FROM t WHERE a<>b AND c!='d''e'; -- comment"
    yield "snake_case camelCase PascalCase kebab-case SCREAMING_CASE x_1_y __init__ $var @at"
    yield "!!!??? ... ---- ==== ****  #### //// \\\\\\\\ ((([[[{{{ }}}]]]))) ,,,;;;:::"
    yield "a+b-c*d/e=f<g>h|i&j^k~l%m a + b - c"
    yield "Ġ Ċ ĉ Ń č Âł ▁ ▁▁x <0x0A> <unk> </s>"        # looks like the byte alphabet
    yield "base64 QWxsIHlvdXIgYmFzZQ== /usr/lib/x86_64-linux-gnu/libfoo.so.1.2"
    yield "```c\nx = y;\n```\n| a | b |\n|---|---|\n"


def long_words():
    yield "a" * 300
    yield "ab" * 100 + "abc" * 50
    yield "the" * 40 + "The" * 3
    yield "漢字" * 60
    yield "antidisestablishmentarianism" * 4
    yield "😀" * 40
    yield "!?" * 50
    yield "modelmodel adapteradapter modeladapter trainstrains"


def mixed(count):
    """Strings put together from pieces of everything above; fixed seed."""
    rng = random.Random(20240607)
    pieces = ["the", " model", "Größe", "e\u0301", "今天", " 😀", "\u200d", "  ", "\n", "\r\n", "\t",
              "12", "345", "7", "'s", "'LL", "!", "?!", "\xa0", "\u3000", "ा", "क", "א", "ـ", "ต",
              "\u0301", "가", "ᄀ", "ᅡ", "<|im_end|>", "<|eot_id|>", "<a>", "<a>b", "[L----]",
              "[-R---]", "[LRSNP]", "[--S--]", "tokword", "_", "‿", "½", "ﬁ", "\x01", "Ⅷ", "\x85",
              "\ufeff", "𝟙", "\u180e"]
    for _ in range(count):
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(4, 24)))


def combos():
    """All 32 combinations of the flags, the content naming those that are set."""
    for bits in range(32):
        on = [bool(bits >> i & 1) for i in range(5)]
        content = "[" + "".join(c if b else "-" for c, b in zip("LRSNP", on)) + "]"
        yield content, dict(lstrip=on[0], rstrip=on[1], single_word=on[2], normalized=on[3],
                            special=on[4])


def chat_text():
    """Added tokens against text, white space and each other."""
    for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
              "<tool_call>", "<pad>"):
        yield t
        yield f"a{t}b {t} c  {t}{t} \n{t}\n d{t}"
    yield "<|im_start|>user\nWhat's up?<|im_end|>\n<|im_start|>assistant\nNot much.<|im_end|>\n"
    yield ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi 1234<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\n")
    yield "<|im_start|"
    yield "<|im_start|><|im_start|> <|im_end |> <|IM_END|> |im_end|>"
    yield "<tool_call>{\"name\": 1}</tool_call><think>\n\n</think>"
    for content, _ in combos():
        yield (f"ab{content}cd  {content}  gh_{content} {content}·{content}{content}\n\n{content}"
               f"\n\xa0{content}\u3000x½{content}1\u0301{content}\u0301-{content}\u200d")
    # White space between two that both want it; order of the flags on both sides.
    yield "[LR---]  [LR---] \n [L----]  [-R---]  [L----] [-R---] x"
    yield "[-R---]   [L--N-]   [-R-N-]   [L----]  y"
    yield " [L---P] [-R--P]  [--SN-] [--S--]\t[LRSNP]"
    # Neighbours that may be word characters: letters, digits, marks, joiners, connectors, numbers.
    for n in ("a", "é", "9", "_", "\u203f", "\u0301", "\u200d", "\u200c", "½", "²", "Ⅷ", "٣", "ª",
              "一", "😀", "-", "\u00ad", "\u0903", "ⓐ", "\u20dd"):
        yield f"{n}[--S--]{n} {n}tokword{n} tokword{n} {n}tokword [--SN-]{n} {n}[--SN-]"
    yield "tokword tokwords mytokword tokword_ tok.word tokword.tokword-tokword tokwordtokword"
    # Overlapping contents: the longest, the first, and which set is searched first.
    yield "<a>b <a>bc <a> b<a>b<a><a>bb <a>b<a>"
    yield "<a>c<a>cd<a>cde <xyx> xyxyx <xy xyz> yxy"
    yield "<c>d <c> d<c>dd <e>f<e>ff<e>"
    yield "one two three one two one  two onetwo one two"
    yield "é e\u0301 [é] [e\u0301] [Å] [\u212b] [A\u030a] <é> <e\u0301>"
    yield "[nfc>\u0338 [raw>\u0338 [raw>\u0301 [nfc>x\u0301 [nfc> [raw>"
    yield "a[raw>\u0301\u0323b e[raw>e\u0301 \u1100[raw>\u1161"
    yield "Ġx Ġ x <a b> <a  b> <a\tb> <é>"
    yield "<new\nline> <new\r\nline> x<new\nline>y"
    yield "ſ[--S--]ſ <A> <Ａ> <a＞"


def corpus():
    seen, out = set(), []
    parts = [[""], scripts(), normal_forms(), emoji(), spaces(), controls(), numbers(),
             contractions(), code(), long_words(), chat_text(), mixed(40)]
    for part in parts:
        for s in part:
            if s not in seen:
                seen.add(s)
                out.append(s)
    return out


def byte_level(**kw):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **kw)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def trained(pre, size, special=(), normalizer=None, alphabet=True):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [])
    tok.train_from_iterator([s for s in SENTENCES for _ in range(3)], trainer)
    tok.decoder = decoders.ByteLevel()
    return tok


def special(*contents):
    return [AddedToken(c, normalized=False, special=True) for c in contents]


def template(tok, single, **tokens):
    return processors.TemplateProcessing(
        single=single, special_tokens=[(c, tok.token_to_id(c)) for c in tokens.values()])


def old_merges(data):
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]


def layout_gpt2():
    """GPT-2: the regex of ByteLevel, merges as "a b", the end token inside the vocabulary."""
    tok = trained(byte_level(use_regex=True), 600,
                  [AddedToken("<|endoftext|>", normalized=True, special=True)])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    data = json.loads(tok.to_str())
    old_merges(data)
    return data


def layout_gpt2_prefix():
    """As old files are: no type, no ignore_merges; a leading space; bos and eos by template."""
    tok = trained(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), 500, ["<pad>"])
    tok.add_special_tokens(special("<|begin_of_text|>", "<|im_end|>"))
    tok.add_tokens([AddedToken("<a>", normalized=True), AddedToken("[L----]", lstrip=True)])
    tok.post_processor = template(tok, "<|begin_of_text|> $A <|im_end|>", a="<|begin_of_text|>",
                                  b="<|im_end|>")
    data = json.loads(tok.to_str())
    old_merges(data)
    for key in ("type", "ignore_merges", "dropout", "byte_fallback"):
        data["model"].pop(key)
    return data


def layout_llama3():
    """Llama-3: Split with its regex, whole pre-tokens first (ignore_merges), bos by template."""
    tok = trained(pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]), 700)
    tok.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                   "<|end_header_id|>", "<|eot_id|>"))
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template(tok, "<|begin_of_text|> $A", a="<|begin_of_text|>")])
    data = json.loads(tok.to_str())
    # Without some of their merges these words can be reached only through ignore_merges.
    merges = data["model"]["merges"]
    data["model"]["merges"] = [m for i, m in enumerate(merges) if i % 5 or len("".join(m)) < 4]
    data["model"]["ignore_merges"] = True
    return data


def layout_qwen():
    """Qwen2/3: NFC, Split with one digit a piece, chat tokens special and not, no bos."""
    tok = trained(pre_tokenizers.Sequence([split(QWEN), byte_level(use_regex=False)]), 650,
                  normalizer=normalizers.NFC())
    tok.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tok.add_tokens([AddedToken(c, normalized=False, special=False)
                    for c in ("<tool_call>", "</tool_call>", "<think>", "</think>")])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return json.loads(tok.to_str())


def layout_smollm():
    """SmolLM2: digits one by one, then GPT-2's regex; like the real one it lacks some bytes."""
    tok = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                           byte_level(use_regex=True)]), 640,
                  ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"])
    data = json.loads(tok.to_str())
    # 0x04, 0x06, 0x13, 0x14, 0x16, 0x1d and the lead bytes 0xf1, 0xf2 (also those no UTF-8 has).
    gone = set("\u0104\u0106\u0113\u0114\u0116\u011d\xf1\xf2\xc0\xc1")
    gone |= set(map(chr, range(0xf5, 0x100)))
    vocab = [t for t, _ in sorted(data["model"]["vocab"].items(), key=lambda x: x[1])]
    vocab = [t for t in vocab if t not in gone]
    assert all(not gone & set("".join(m)) for m in data["model"]["merges"])
    data["model"]["vocab"] = {t: i for i, t in enumerate(vocab)}
    return data


def layout_added():
    """All combinations of the flags of an added token, and contents that overlap."""
    tok = trained(byte_level(use_regex=True), 480)
    both = list(combos())
    tok.add_tokens([AddedToken(c, **f) for c, f in both if not f["special"]])
    tok.add_special_tokens([AddedToken(c, **f) for c, f in both if f["special"]])
    tok.add_tokens([
        AddedToken("tokword", single_word=True, normalized=False),
        AddedToken("<a>", normalized=False), AddedToken("<a>b", normalized=False),
        AddedToken("<a>c", normalized=True), AddedToken("<a>cd", normalized=False),
        AddedToken("<c>", normalized=True), AddedToken("<c>d", normalized=True),
        AddedToken("<e>", normalized=False), AddedToken("<e>f", normalized=True),
        AddedToken("xyx", normalized=False), AddedToken("xyz", normalized=False),
        AddedToken("one", normalized=True, rstrip=True), AddedToken("one two", normalized=True),
        AddedToken("<a b>", normalized=False), AddedToken("<é>", normalized=False),
        AddedToken("Ġx", normalized=False), AddedToken("<new\nline>", normalized=False),
    ])
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    return json.loads(tok.to_str())


def layout_added_nfc():
    """Added tokens under a normalizer: which are sought before NFC and which after."""
    tok = trained(pre_tokenizers.Sequence([split(QWEN), byte_level(use_regex=False)]), 480,
                  normalizer=normalizers.NFC())
    both = list(combos())
    tok.add_tokens([AddedToken(c, **f) for c, f in both if not f["special"]])
    tok.add_special_tokens([AddedToken(c, **f) for c, f in both if f["special"]])
    tok.add_tokens([
        AddedToken("[nfc>", normalized=True), AddedToken("[raw>", normalized=False),
        AddedToken("[e\u0301]", normalized=True), AddedToken("[\u212b]", normalized=True),
        AddedToken("<e\u0301>", normalized=False), AddedToken("<a>", normalized=True),
        AddedToken("<a>b", normalized=False), AddedToken("<c>", normalized=False),
        AddedToken("<c>d", normalized=True), AddedToken("tokword", single_word=True),
        AddedToken("<|im_end|>", normalized=False, special=True),
    ])
    tok.post_processor = template(tok, "$A <|im_end|>", a="<|im_end|>")
    return json.loads(tok.to_str())


def edges(pre):
    """A tokenizer whose ids show where the pre-tokenizer cut.

    Every pair of bytes that meets at the edge of two characters in the corpus is a merge, unless
    both are ASCII letters: where there was no cut the pair is one token, where there was it is two.
    """
    alphabet = dict(zip(list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)),
                        map(chr, list(range(33, 127)) + list(range(161, 173))
                            + list(range(174, 256)))))
    rest = [b for b in range(256) if b not in alphabet]
    alphabet.update((b, chr(256 + i)) for i, b in enumerate(rest))
    pairs = set()
    for text in corpus():
        data = [c.encode() for c in text]
        pairs |= {(a[-1], b[0]) for a, b in zip(data, data[1:])}
    letter = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    pairs = sorted((p for p in pairs if not set(p) <= letter),
                   key=lambda p: (p[0] < 128 and p[1] < 128, p))
    merges = [(alphabet[a], alphabet[b]) for a, b in pairs]
    tokens = [alphabet[b] for b in range(256)] + [a + b for a, b in merges]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    data = json.loads(tok.to_str())
    old_merges(data)
    return data


def layout_edges_llama3():
    return edges(pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]))


def layout_edges_smollm():
    return edges(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                          byte_level(use_regex=True)]))


LAYOUTS = {
    "gpt2": layout_gpt2, "gpt2-prefix": layout_gpt2_prefix, "llama3": layout_llama3,
    "qwen": layout_qwen, "smollm": layout_smollm, "added": layout_added,
    "added-nfc": layout_added_nfc, "edges-llama3": layout_edges_llama3,
    "edges-smollm": layout_edges_smollm,
}
COMPACT = ("gpt2", "edges-llama3", "edges-smollm")

# tokenizer_config.json of some layouts: a name as string, as object, null or not there.
CONFIGS = {
    "gpt2": {"bos_token": None, "eos_token": "<|endoftext|>", "add_prefix_space": False},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": {
        "__type": "AddedToken", "content": "<|end_of_text|>", "lstrip": False, "normalized": False,
        "rstrip": False, "single_word": False}, "clean_up_tokenization_spaces": True},
    "qwen": {"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|endoftext|>"},
}


def put(out, key, text):
    """A NUL has no place in the strings of many JSON readers: such a text goes in hexadecimal."""
    if "\0" in text:
        out[key + "_hex"] = text.encode().hex()
    else:
        out[key] = text
    return out


def case(tok, text, before, after):
    """What the library does with one string; what equals the entry before it is left out."""
    ids = tok.encode(text, add_special_tokens=False).ids
    out = {"ids": ids}
    all_ids = tok.encode(text, add_special_tokens=True).ids
    assert all_ids == before + ids + after
    plain = tok.decode(ids, skip_special_tokens=False)
    if plain != text:
        put(out, "decoded", plain)
    skipped = tok.decode(all_ids, skip_special_tokens=True)
    if skipped != plain:
        put(out, "decoded_skip", skipped)
    cut = len(ids) // 2         # generation shows text before a character is whole
    if cut and not plain.startswith(tok.decode(ids[:cut], skip_special_tokens=False)):
        out["cut"] = cut
        put(out, "decoded_cut", tok.decode(ids[:cut], skip_special_tokens=False))
    return out


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(HERE)
    texts = corpus()
    with open(os.path.join(HERE, "corpus.jsonl"), "w") as f:
        for s in texts:
            f.write(json.dumps(put({}, "text", s)) + "\n")
    for name, make in LAYOUTS.items():
        data = make()
        os.makedirs(os.path.join(HERE, name))
        path = os.path.join(HERE, name, "tokenizer.json")
        with open(path, "w") as f:
            json.dump(data, f, ensure_ascii=False, indent=None if name in COMPACT else 1)
            f.write("\n")
        if name in CONFIGS:
            with open(os.path.join(HERE, name, "tokenizer_config.json"), "w") as f:
                json.dump(CONFIGS[name], f, indent=2)
                f.write("\n")
        tok = Tokenizer.from_file(path)     # the file as written is what is asked, not the object
        ids, all_ids = tok.encode("a", add_special_tokens=False).ids, tok.encode("a").ids
        at = all_ids.index(ids[0])
        before, after = all_ids[:at], all_ids[at + len(ids):]
        with open(os.path.join(HERE, name + ".ids.json"), "w") as f:
            f.write('{"tokenizers": "%s", "before": %s, "after": %s, "cases": [\n'
                    % (tokenizers.__version__, before, after))
            cases = [json.dumps(case(tok, s, before, after), separators=(",", ":"))
                     for s in texts]
            f.write(",\n".join(cases) + "\n]}\n")
        sizes = [os.path.getsize(p) for p in (path, os.path.join(HERE, name + ".ids.json"))]
        print(f"{name}: vocabulary {tok.get_vocab_size()}, {len(texts)} strings, "
              f"{sizes[0] // 1024} + {sizes[1] // 1024} KiB")
    with open(os.path.join(HERE, "manifest.json"), "w") as f:
        json.dump({"generator": "tests/golden/make_text.py", "python": sys.version.split()[0],
                   "tokenizers": tokenizers.__version__, "strings": len(texts),
                   "layouts": list(LAYOUTS)}, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main()
