"""Cut a text into words, Chinese characters and signs."""

import re
import unicodedata
from functools import cache

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # CJK ideographs
HAN_CHARACTER = re.compile(f"[{HAN}]")
JOINER = "\u200d"  # glues the parts of one emoji, as in a family
SKIN_TONES = "\U0001f3fb-\U0001f3ff"
FLAG_HALVES = "\U0001f1e6-\U0001f1ff"
INVISIBLE = re.compile("[\0-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u2060\ufeff\ud800-\udfff]")


@cache
def token_pattern():
    """The regular expression of one token, made at first use.

    `re` has no class for combining marks and leaves them out of `\\w`, so a decomposed `é` or a Devanagari
    vowel would fall apart: the class is collected here, from the planes that hold living scripts.
    """
    marks = "".join(chr(c) for c in range(0x10000) if unicodedata.category(chr(c)).startswith("M"))
    mark = f"[{marks}{SKIN_TONES}]"
    word = rf"(?:[^\W_{HAN}]{mark}*)+"  # letters and digits of any script but Han
    return re.compile(
        rf"{word}(?:'{word})*"  # don't
        rf"|[{FLAG_HALVES}]{{2}}"
        rf"|\S{mark}*(?:{JOINER}\S{mark}*)*"  # a Chinese character, a sign, an emoji
    )


def tokenise(text):
    """The tokens of a text in order, lower-cased: words, single Chinese characters, single signs.

    `"It's 80% off，我爱NLP!"` gives `it's 80 % off , 我 爱 nlp !`. A word is a run of letters and digits of one
    kind or many, with the apostrophes inside it (`don't`, `rock'n'roll`; quotation marks around it stand
    apart); hyphens and underscores separate. Each Chinese character is a token, an emoji is one with all its
    parts. Texts that look alike give the same tokens: they are first put in Unicode's form NFKC (full-width
    letters become plain, an accent joins its letter), curly apostrophes are straightened, and invisible
    characters dropped.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, not {type(text).__name__}")
    text = INVISIBLE.sub("", text)
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    text = unicodedata.normalize("NFKC", text)  # again: some accents join the small letter only
    return token_pattern().findall(text)
