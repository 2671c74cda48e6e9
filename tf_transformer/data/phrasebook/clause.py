"""Clauses in both languages: a verb, its complement and its time, in every word order."""

import dataclasses
import re
from random import Random

from tf_transformer.data.phrasebook import lexicon
from tf_transformer.data.phrasebook.lexicon import FORMS, Noun, Pair, Verb, join, number
from tf_transformer.data.phrasebook.noun_phrase import (
    Subject,
    contract,
    draw_adjective,
    draw_noun,
    draw_place,
    noun_phrase,
)


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A verb with its complement, affirmative and negated."""

    verb: Verb
    de: str = ""
    en: str = ""
    de_not: str = "nicht"
    en_not: str = ""


@dataclasses.dataclass(frozen=True)
class Clause:
    """A clause whose words are not in order yet.

    German has a `finite` verb, a `middle` field and an `end`; a subordinate clause ends with
    `last`. English has `aux` and `rest` in questions and negations, and `plain` in affirmative
    statements.
    """

    subject: Subject
    finite: str
    middle: str
    end: str
    last: str
    aux: str
    rest: str
    plain: str
    time: Pair = ("", "")

    def second(self) -> str:
        """Returns German with the verb second, after the subject."""
        return join(self.subject.de, self.finite, self.time[0], self.middle, self.end)

    def inverted(self) -> str:
        """Returns German with the verb second, after the time."""
        return join(self.time[0], self.finite, self.subject.de, self.middle, self.end)

    def first(self) -> str:
        """Returns German with the verb first: questions, and main clauses after others."""
        return join(self.finite, self.subject.de, self.time[0], self.middle, self.end)

    def final(self) -> str:
        """Returns German with the verb last: subordinate clauses."""
        return join(self.subject.de, self.time[0], self.middle, self.last)

    def english(self) -> str:
        """Returns an English statement."""
        before, after = self._times()
        return join(self.subject.en, before, self.plain, after)

    def english_fronted(self) -> str:
        """Returns an English statement that begins with the time."""
        return join(self.time[1], self.subject.en, self.plain)

    def english_question(self) -> str:
        """Returns an English question, which begins with an auxiliary."""
        before, after = self._times()
        return join(self.aux, self.subject.en, before, self.rest, after)

    def _times(self) -> Pair:
        """Returns the time before the English verb, such as `often`, and the time after it."""
        time = self.time[1]
        return (time, "") if time in ("often", "sometimes") else ("", time)


def draw_object(r: Random, noun: Noun, det: str, subject: Subject) -> tuple[str, str, str, str]:
    """Draws an accusative object: German and English, then both negated."""
    adjective = draw_adjective(r, noun)
    if det in "dp":
        word = "der" if det == "d" or noun.kind in ("people", "children") else subject.owner
        de, en = noun_phrase(noun, "acc", word, adjective)
        return de, en, f"{de} nicht", en
    several = noun.de_plural != "-" and det in "02"
    negated = noun_phrase(noun, "acc", "kein", adjective, several)
    de, en = noun_phrase(noun, "acc", "ein" if det == "e" else "", adjective, several)
    if several and det == "2":
        number_de, number_en = number(r.randint(2, 6))
        de, en = f"{number_de} {de}", f"{number_en} {en}"
    return de, en, *negated


def draw_clock(r: Random) -> Pair:
    """Draws a time of day; German `halb drei` is half past two."""
    hour = r.randint(3, 12)
    (de, en), before = number(hour), number(hour - 1)[1]
    sides = [(f"halb {de}", f"half past {before}"), (f"{de} Uhr", f"{en} o'clock")]
    for minutes_de, minutes_en in (("Viertel", "quarter"), ("zehn", "ten"), ("zwanzig", "twenty")):
        sides.append((f"{minutes_de} vor {de}", f"{minutes_en} to {en}"))
        sides.append((f"{minutes_de} nach {de}", f"{minutes_en} past {en}"))
    return r.choice(sides)


def _draw_adverbial(r: Random, kind: str, subject: Subject) -> Pair:
    """Draws the complement of a verb without an object; languages differ in its word order."""
    if kind == "@place":
        return draw_place(r)
    if kind == "@clock":
        de, en = draw_clock(r)
        return f"um {de}", f"at {en}"
    city_de, city_en = r.choice(lexicon.CITIES)
    if kind == "@city":
        return r.choice([(f"in {city_de}", f"in {city_en}"), ("auf dem Markt", "at the market")])
    if kind == "@arrival":
        de, en = draw_clock(r)
        return f"um {de} in {city_de}", f"in {city_en} at {en}"
    if kind == "@wait":
        place_de, place_en = draw_place(r)
        noun = draw_noun(r, "family", "parents", other_than=subject.noun)
        de, en = draw_object(r, noun, "p", subject)[:2]
        return f"{place_de} auf {de}", f"for {en} {place_en}"
    vehicle = draw_noun(r, "vehicles")
    de, en = noun_phrase(draw_noun(r, "places"), "dat", "der")
    de, en = r.choice([(f"nach {city_de}", f"to {city_en}"), (contract("zu", de), f"to {en}")])
    return f"mit dem {vehicle.de} {de}", f"{en} by {vehicle.en}"


def draw_phrase(r: Random, tense: str, subject: Subject, only: str = "") -> Phrase:
    """Draws a verb and its complement; `only` is a list of frame names, or `object`."""
    frames = [frame for frame in lexicon.FRAMES if tense in frame.tenses]
    if only == "object":
        frames = [frame for frame in frames if frame.dets != "-"]
    elif only:
        frames = [frame for frame in frames if frame.name.startswith(tuple(only.split()))]
    frame = r.choice(frames)
    if frame.dets == "-":
        de, en = _draw_adverbial(r, frame.kinds[0], subject)
        return Phrase(frame.verb, de, en, f"nicht {de}", en)
    noun = draw_noun(r, *frame.kinds, other_than=subject.noun)
    return Phrase(frame.verb, *draw_object(r, noun, r.choice(frame.dets), subject))


def draw_time(r: Random, tense: str, phrase: Phrase | None = None, front: bool = False) -> Pair:
    """Draws a time that suits the tense, the phrase and, if asked, the `front` of a sentence."""
    wrong = "oft" if front else "-"
    if phrase and phrase.verb.infinitive in ("machen", "ziehen"):
        wrong += "|Woche"
    if phrase and phrase.de.startswith("um "):
        wrong += "|Woche|Abend|jetzt"
    return r.choice([time for time in lexicon.TIMES[tense] if not re.search(wrong, time[0])])


def draw_clause(
    r: Random,
    tense: str,
    subject: Subject,
    phrase: Phrase | None = None,
    negated: bool = False,
    time: Pair | None = None,
) -> Clause:
    """Conjugates a phrase for a subject in both languages.

    Args:
        r: Random generator for what is not given.
        tense: A letter of `TIMES`.
        subject: Who acts.
        phrase: What they do.
        negated: Whether they do not.
        time: When; drawn if None, `("", "")` for none where other words decide the tense.
    """
    phrase = phrase or draw_phrase(r, tense, subject)
    time = time or draw_time(r, tense, phrase)
    modals = list(lexicon.MODALS)
    modal = r.choice(modals[:-1] if negated else modals) if tense == "m" else ""
    finite, end, last = _conjugate_german(phrase.verb, tense, subject.person, modal)
    aux, head, plain = _conjugate_english(phrase.verb, tense, subject.person, modal)
    middle, en = (phrase.de_not, phrase.en_not) if negated else (phrase.de, phrase.en)
    if negated:
        plain = f"{aux} not {head}".replace("can not", "cannot")
    return Clause(subject, finite, middle, end, last, aux, join(head, en), join(plain, en), time)


def _conjugate_german(verb: Verb, tense: str, person: int, modal: str) -> tuple[str, str, str]:
    """Returns the finite verb, and the end of a main and of a subordinate clause."""
    finite, end = verb.finite(person), verb.particle
    if tense not in "pm":
        return finite, end, end + finite
    if tense == "p":
        finite = FORMS["sein" if verb.participle[0] == "*" else "haben"][person]
        end = verb.participle.lstrip("*")
    else:
        finite, end = lexicon.MODALS[modal][person], verb.particle + verb.infinitive
    return finite, end, f"{end} {finite}"


def _conjugate_english(verb: Verb, tense: str, person: int, modal: str) -> tuple[str, str, str]:
    """Returns the auxiliary, the words after it, and the affirmative verb."""
    base, be, do = verb.english("base"), FORMS["be"][person], FORMS["do"][person]
    if tense == "n":
        return be, verb.english("ing"), f"{be} {verb.english('ing')}"
    if tense == "f":
        return "will", base, f"will {base}"
    if tense == "p":
        return "did", base, verb.english("past")
    if tense == "h":
        return do, base, verb.english("s" if person == 2 else "base")
    aux, _, rest = modal.partition(" ")
    if rest == "to":  # `want to` and `have to` are full verbs.
        return do, f"{modal} {base}", f"{FORMS[aux][person]} to {base}"
    return aux, join(rest, base), f"{modal} {base}"


def be(subject: Subject, verb: str, de: str, en: str, past: bool = False) -> Clause:
    """Returns a clause with English `be` and German `sein` or `haben`."""
    form = subject.person + 4 * past
    finite, aux = FORMS[verb][form], FORMS["be"][form]
    return Clause(subject, finite, de, "", finite, aux, en, f"{aux} {en}")
