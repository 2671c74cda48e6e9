"""Noun phrases in both languages: declension, people, locations and subjects."""

import dataclasses
from random import Random

from tf_transformer.data.phrasebook import lexicon
from tf_transformer.data.phrasebook.lexicon import Adjective, Noun, Pair, join

# Endings by case, for masculine, feminine, neuter and plural: articles, then adjectives.
_DER = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
_EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
_WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
_MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
_STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
_CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur"}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A subject in both languages, and the words that refer to it.

    `person` is 0 ich, 1 du, 2 er or 3 plural, `owner` the possessive for this subject's things and
    `pronoun` the subject in a second clause.
    """

    de: str
    en: str
    person: int
    owner: str = "mein"
    pronoun: Pair = ("", "")
    noun: Noun | None = None

    def again(self) -> "Subject":
        """Returns the subject of a second clause, a pronoun."""
        return dataclasses.replace(self, de=self.pronoun[0], en=self.pronoun[1], noun=None)


DU = Subject("du", "you", 1, "dein", ("du", "you"))
SIE = Subject("Sie", "you", 3, "Ihr", ("Sie", "you"))


def noun_phrase(
    noun: Noun, case: str, det: str, adjective: Adjective | None = None, plural: bool = False
) -> Pair:
    """Returns a noun phrase.

    Args:
        noun: The noun.
        case: `nom`, `acc` or `dat`.
        det: `der`, `ein`, `kein`, a possessive such as `mein`, or nothing.
        adjective: Adjective before the noun; the determiner decides its ending.
        plural: Whether there are several.

    Returns:
        German and English; for `kein` the English after `not`, with `a` or `any`.
    """
    word = noun.de_plural if plural else noun.de
    if plural and case == "dat" and word[-1] not in "ns":
        word += "n"
    article = the(noun, case, plural)
    if det != "der":
        article = det and det + _ending(_EIN, case, noun, plural)
    endings = {"der": _WEAK, "": _STRONG}.get(det, _MIXED)
    adj = adjective.stem + _ending(endings, case, noun, plural) if adjective else ""
    en = join(adjective.en if adjective else "", noun.en_plural if plural else noun.en)
    if det in ("ein", "kein"):
        any_ = plural or noun.de_plural == "-"
        en = f"{'any' if any_ else 'an' if en[0] in 'aeiou' else 'a'} {en}"
    elif det:
        en = f"{'the' if det == 'der' else lexicon.POSSESSIVES_EN[det]} {en}"
    return join(article, adj, word), en


def the(noun: Noun, case: str, plural: bool = False) -> str:
    """Returns the definite article, which is also the relative pronoun."""
    return _ending(_DER, case, noun, plural)


def _ending(table: dict[str, str], case: str, noun: Noun, plural: bool) -> str:
    """Returns an ending or article by case, gender and number."""
    return table[case].split()[3 if plural else "mfn".index(noun.gender)].strip("-")


def contract(preposition: str, phrase: str) -> str:
    """Joins a preposition and a noun phrase, contracted to im, am, zum or zur."""
    words = f"{preposition} {phrase}"
    return _CONTRACTIONS.get(words[:6], words[:6]) + words[6:]


def draw_noun(r: Random, *kinds: str, other_than: Noun | None = None) -> Noun:
    """Draws a noun of some classes, other than one such as the subject."""
    return r.choice([n for kind in kinds for n in lexicon.NOUNS[kind] if n != other_than])


def draw_adjective(r: Random, noun: Noun, share: float = 0.4) -> Adjective | None:
    """Draws an adjective that suits a noun, with the probability `share`, else None."""
    return r.choice(lexicon.ADJECTIVES[noun.kind] or [None]) if r.random() < share else None


def draw_owner(r: Random, noun: Noun) -> str:
    """Draws the determiner of a person: a possessive for family, else the article."""
    return r.choice(["mein", "dein", "unser"] if noun.kind in ("family", "parents") else ["der"])


def draw_people(
    r: Random,
    case: str,
    share_plural: float = 0.5,
    other_than: Noun | None = None,
    described: bool = False,
) -> tuple[Pair, Noun, bool]:
    """Draws one or several people: the noun phrase, its noun, and whether it is plural."""
    noun = draw_noun(r, "family", "parents", "people", "children", other_than=other_than)
    plural = noun.kind != "parents" and r.random() < share_plural
    owner = draw_owner(r, noun)
    adjective = draw_adjective(r, noun) if described else None
    return noun_phrase(noun, case, owner, adjective, plural), noun, plural


def draw_subject(r: Random, middle: bool = False, asked: bool = False) -> Subject:
    """Draws a subject.

    Args:
        r: Random generator.
        middle: Whether it is inside the sentence, where it may be `sie` (she or they).
        asked: Whether it is in a question, where it is neither `ich` nor `wir`.
    """
    draw = r.random()
    if draw < 0.55:
        pronouns = ["du you 1"] * 3 + ["er he 2", "Sie you 3"]
        pronouns += ["sie she 2", "sie they 3"] * middle
        pronouns += ["ich I 0", "ich I 0", "ich I 0", "wir we 3"] * (not asked)
        de, en, person = r.choice(pronouns).split()
        owner = lexicon.POSSESSIVES.get(de, "mein")
        return Subject(de, en, int(person), owner, (de, en))
    if draw < 0.68:
        name, gender = r.choice(list(lexicon.NAMES.items()))
        return Subject(name, name, 2, *_third_person(gender))
    (de, en), noun, plural = draw_people(r, "nom", 0.3)
    owner, pronoun = ("mein", ("sie", "they")) if plural else _third_person(noun.gender)
    if noun.gender == "n":  # A child is neither `it` nor surely `he`: no pronoun.
        owner, pronoun = "mein", (de, en)
    return Subject(de, en, 3 if plural else 2, owner, pronoun, noun)


def _third_person(gender: str) -> tuple[str, Pair]:
    """Returns possessive and pronoun for one person; not the ambiguous `ihr`, her or their."""
    return ("mein", ("sie", "she")) if gender == "f" else ("sein", ("er", "he"))


def draw_place(r: Random) -> Pair:
    """Draws a location, in the dative."""
    noun = draw_noun(r, "places")
    de, en = noun_phrase(noun, "dat", "der")
    if r.random() < 0.5:
        beside_de, beside_en = r.choice(lexicon.BESIDE)
        return f"{beside_de} {de}", f"{beside_en} {en}"
    at = lexicon.AT.get(noun.de)
    return contract(at or "in", de), f"{'at' if at else 'in'} {en}"
