"""Templates: sentence patterns of words and slots, and what fills the slots."""

import re
from random import Random

from tf_transformer.data.phrasebook import lexicon
from tf_transformer.data.phrasebook.clause import draw_clock, draw_object, draw_phrase
from tf_transformer.data.phrasebook.lexicon import FORMS, STATES, TIMES, Pair, Rule, join, number
from tf_transformer.data.phrasebook.noun_phrase import (
    DU,
    SIE,
    Subject,
    draw_adjective,
    draw_noun,
    draw_people,
    draw_place,
    draw_subject,
    noun_phrase,
)

# Weight, German, English. Both sides fill a slot with the two sides of one choice.
_TEMPLATE_TABLE = """
24 {goods} kostet {number} Euro. | {goods} costs {number} euros.
26 {my_goods} hat {number} Euro gekostet. | {my_goods} cost {number} euros.
27 {subject_is} {number} Jahre alt. | {subject_is} {number} years old.
5 es ist {clock}. | it is {clock}.
10 {vehicle} nach {city} fährt um {clock} ab. | {vehicle} to {city} leaves at {clock}.
10 {vehicle} kommt um {clock} in {city} an. | {vehicle} arrives in {city} at {clock}.
10 {place} macht {open_day} um {clock} auf. | {place} opens at {clock} {open_day}.
10 {place} macht {open_day} um {clock} zu. | {place} closes at {clock} {open_day}.
12 könnten Sie bitte {sie_task}? | could you please {sie_task}?
12 könntest du bitte {day} {du_task}? | could you please {du_task} {day}?
16 {may_i} {day} {du_task}? | {may_i} {du_task} {day}?
12 ich hätte gern {food} und {drink}. | I would like {food} and {drink}.
12 wir hätten gern {food}. | we would like {food}.
5 wir hätten gern {drink} und {food}. | we would like {drink} and {food}.
14 {thing} gehört {owner}. | {thing} belongs to {owner}.
12 {things} gehören {owner}. | {things} belong to {owner}.
6 gehört {thing} {owner}? | does {thing} belong to {owner}?
14 {my_thing} gefällt {liker}. | {liker} {my_thing}.
12 {things} gefallen {liker}. | {liker} {things}.
10 gefällt {does_liker} {thing}? | {does_liker} {thing}?
8 {beside}. | {beside}.
8 {subject_is} nicht {where}. | {subject_is} not {where}.
8 {is_subject} {where}? | {is_subject} {where}?
12 {subject_was} {past_day} {where}. | {subject_was} {where} {past_day}.
5 {was_subject} {past_day} {state}? | {was_subject} {state} {past_day}?
14 {subject_had} {past_day} {hunger}. | {subject_had} {hunger} {past_day}.
8 {subject_has} {a_thing}. | {subject_has} {a_thing}.
8 {subject_does} {no_thing}. | {subject_does} not have {no_thing}.
6 {has_subject} {a_thing}? | {has_subject} have {a_thing}?
8 {subject_needs} {a_thing}. | {subject_needs} {a_thing}.
6 {subject_needs_no} {no_thing}. | {subject_needs_no} not need {no_thing}.
5 {hello}, ich heiße {name} und komme aus {city}. | {hello}, I am {name} and I come from {city}.
6 {hello}, {name}, wie geht es {patient}? | {hello}, {name}, how {patient}?
5 {hello}, wo ist {place}? | {hello}, where is {place}?
8 Entschuldigung, wie viel kostet {thing}? | excuse me, how much does {thing} cost?
12 Entschuldigung, ist das {your_thing}? | excuse me, is that {your_thing}?
6 wo kann ich {a_thing} kaufen? | where can I buy {a_thing}?
5 {hello}, wem gehört {thing}? | {hello}, who does {thing} belong to?
"""
_HELLOS = [("guten Tag", "hello"), ("guten Morgen", "good morning")]
_HELLOS += [("guten Abend", "good evening")]
_MAY_I = [("darf ich", "may I"), ("kann ich", "can I"), ("muss ich", "do I have to")]
_MAY_I += [("können wir", "can we"), ("müssen wir", "do we have to")]
_DATIVES = ["mir I me 0", "uns we us 3", "dir you you 1", "ihm he him 2", "ihr she her 2"]
_DATIVES += ["ihnen they them 3", "Ihnen you you 3"]


def _thing(r: Random, case: str, det: str, *more: str, plural: bool = False) -> Pair:
    """Draws a possession; without `more` kinds one that costs twenty to fifty-nine euros."""
    noun = draw_noun(r, "luggage", "clothes", "switches", *more)
    adjective = draw_adjective(r, noun, 0.4 if det == "der" else 0.7)
    return noun_phrase(noun, case, det, adjective, plural)


def _task(r: Random, subject: Subject) -> Pair:
    """Draws what the subject is asked to do, with the German verb last."""
    phrase = draw_phrase(r, "m", subject, lexicon.REQUESTS)
    de = join(phrase.de, phrase.verb.particle + phrase.verb.infinitive)
    return de, join(phrase.verb.english("base"), phrase.en)


def _food(r: Random, *kinds: str) -> Pair:
    """Draws something to order."""
    noun = draw_noun(r, *kinds)
    return draw_object(r, noun, "2" if noun.kind == "fruits" else "0", DU)[:2]


def _verbed(r: Random, de: str, en: str, swap: bool = False, past: bool = False) -> Pair:
    """Draws a subject and its form of a verb, in this order or, with `swap`, reversed."""
    subject = draw_subject(r, middle=swap, asked=swap)
    while subject.noun and subject.noun.kind == "children":  # They are not fifty years old.
        subject = draw_subject(r, middle=swap, asked=swap)
    form = subject.person + 4 * past
    sides = [(subject.de, FORMS[de][form]), (subject.en, FORMS[en][form])]
    return tuple(" ".join(side[::-1] if swap else side) for side in sides)


def _location(r: Random) -> Pair:
    """Draws a sentence on the location of one building beside another."""
    first, second = r.sample(lexicon.NOUNS["places"], 2)
    (de, en), (de2, en2) = noun_phrase(first, "nom", "der"), noun_phrase(second, "dat", "der")
    beside, beside_en = r.choice(lexicon.BESIDE)
    return f"{de} ist {beside} {de2}", f"{en} is {beside_en} {en2}"


def _patient(r: Random) -> Pair:
    """Draws whom to ask after: `dir` and `are you`, `deiner Mutter` and `is your mother`."""
    if r.random() < 0.2:
        return r.choice([("dir", "are you"), ("Ihnen", "are you")])
    noun = draw_noun(r, "family", "parents")
    plural = noun.kind == "family" and r.random() < 0.5
    de, en = noun_phrase(noun, "dat", r.choice(["dein", "unser"]), None, plural)
    return de, join(FORMS["be"][2 + plural], en)


def _dative_person(r: Random, after: bool, question: bool = False) -> Pair:
    """Draws a person in the dative: an English object (`after`), or one who likes something."""
    if r.random() < 0.5:
        de, subject_en, object_en, person = r.choice(_DATIVES[2 * question :]).split()
    else:
        (de, subject_en), _, plural = draw_people(r, "dat")
        object_en, person = subject_en, 2 + plural
    do = FORMS["do"][int(person)]
    like = f"{do} {subject_en} like" if question else f"{subject_en} like{'s' * (do == 'does')}"
    return de, object_en if after else like


_SLOTS: dict[str, Rule] = {
    "name": lambda r: (r.choice(list(lexicon.NAMES)),) * 2,
    "city": lambda r: r.choice(lexicon.CITIES),
    "hello": lambda r: r.choice(_HELLOS),
    "day": lambda r: r.choice(TIMES["m"][1:3] + TIMES["f"][2:3]),
    "open_day": lambda r: r.choice(TIMES["m"][1:3] + TIMES["h"][:1]),
    "clock": draw_clock,
    "number": lambda r: number(r.randint(20, 59)),
    "where": draw_place,
    "place": lambda r: noun_phrase(draw_noun(r, "places"), "nom", "der"),
    "vehicle": lambda r: noun_phrase(draw_noun(r, "vehicles"), "nom", "der"),
    "goods": lambda r: _thing(r, "nom", "der"),
    "my_goods": lambda r: _thing(r, "nom", r.choice(lexicon.OWNERS)),
    "thing": lambda r: _thing(r, "nom", "der", "texts", "machines"),
    "things": lambda r: _thing(r, "nom", "der", "texts", "machines", plural=True),
    "my_thing": lambda r: _thing(r, "nom", r.choice(lexicon.OWNERS), "texts", "machines"),
    "your_thing": lambda r: _thing(r, "nom", r.choice(["dein", "Ihr"]), "texts", "machines"),
    "a_thing": lambda r: _thing(r, "acc", "ein", "texts", "machines", "papers"),
    "no_thing": lambda r: _thing(r, "acc", "kein", "texts", "machines", "papers"),
    "food": lambda r: _food(r, "meals", "snacks", "fruits"),
    "drink": lambda r: _food(r, "drinks", "cups"),
    "state": lambda r: r.choice([state[1:3] for state in STATES if state[0] == "sein"]),
    "hunger": lambda r: r.choice([state[1:3] for state in STATES if state[0] == "haben"]),
    "past_day": lambda r: r.choice(TIMES["p"]),
    "beside": _location,
    "may_i": lambda r: r.choice(_MAY_I),
    "du_task": lambda r: _task(r, DU),
    "sie_task": lambda r: _task(r, SIE),
    "owner": lambda r: _dative_person(r, after=True),
    "liker": lambda r: _dative_person(r, after=False),
    "does_liker": lambda r: _dative_person(r, after=False, question=True),
    "subject_is": lambda r: _verbed(r, "sein", "be"),
    "is_subject": lambda r: _verbed(r, "sein", "be", swap=True),
    "subject_was": lambda r: _verbed(r, "sein", "be", past=True),
    "was_subject": lambda r: _verbed(r, "sein", "be", past=True, swap=True),
    "subject_had": lambda r: _verbed(r, "haben", "be", past=True),
    "patient": _patient,
    "subject_has": lambda r: _verbed(r, "haben", "have"),
    "subject_does": lambda r: _verbed(r, "haben", "do"),
    "has_subject": lambda r: _verbed(r, "haben", "do", swap=True),
    "subject_needs": lambda r: _verbed(r, "brauchen", "need"),
    "subject_needs_no": lambda r: _verbed(r, "brauchen", "do"),
}


def _template(sides: str) -> Rule:
    """Returns the rule of one template."""
    slots, (de, en) = sorted(set(re.findall(r"\w+(?=})", sides))), sides.split(" | ")

    def rule(r: Random) -> Pair:
        pairs = {slot: _SLOTS[slot](r) for slot in slots}
        fill_de, fill_en = ({slot: pairs[slot][side] for slot in slots} for side in range(2))
        return de.format(**fill_de), en.format(**fill_en)

    return rule


_ROWS = [line.split(" ", 1) for line in _TEMPLATE_TABLE.strip().split("\n")]
TEMPLATES: dict[Rule, int] = {_template(sides): int(weight) for weight, sides in _ROWS}
