"""The sentence patterns: main clauses, questions, requests and sentences of two clauses."""

from collections.abc import Callable
from random import Random

from tf_transformer.data.phrasebook import lexicon
from tf_transformer.data.phrasebook.clause import (
    Clause,
    Phrase,
    be,
    draw_clause,
    draw_phrase,
    draw_time,
)
from tf_transformer.data.phrasebook.lexicon import FORMS, Pair, Rule, join
from tf_transformer.data.phrasebook.noun_phrase import (
    DU,
    SIE,
    Subject,
    draw_adjective,
    draw_noun,
    draw_owner,
    draw_people,
    draw_subject,
    noun_phrase,
    the,
)

_Order = Callable[[Clause], str]  # A method of `Clause`.


def _simple(tenses: str, order_de: _Order, order_en: _Order, mark: str) -> Rule:
    """Returns the rule of a one-clause pattern from the word orders of both languages."""

    def rule(r: Random) -> Pair:
        subject = draw_subject(r, order_de != Clause.second, asked=order_de == Clause.first)
        tense = r.choice(tenses)
        phrase = draw_phrase(r, tense, subject)
        time = draw_time(r, tense, phrase, front=order_de == Clause.inverted)
        clause = draw_clause(r, tense, subject, phrase, time=time)
        return order_de(clause) + mark, order_en(clause) + mark

    return rule


def _statement(clause: Clause, mark: str = ".") -> Pair:
    """Returns a clause in the word order of a statement, also that of questions with `wer`."""
    return clause.second() + mark, clause.english() + mark


def _negation(r: Random) -> Pair:
    """Draws `Ich kaufe heute keinen Koffer` or `Ich rufe heute meine Mutter nicht an`."""
    return _statement(draw_clause(r, r.choice("nfpm"), draw_subject(r), negated=True))


def _w_question(r: Random) -> Pair:
    """Draws `Wann hast du den Hut gekauft?`, or a question with another word such as `wer`."""
    de, en = r.choice(["wann when", "wo where", "was what", "warum why", "wer who"]).split()
    if de == "wer":
        return _statement(draw_clause(r, r.choice("nfpm"), Subject(de, en, 2)), "?")
    subject, tense = draw_subject(r, middle=True, asked=True), r.choice("pm")
    found = "kaufen essen trinken bestellen lesen suchen finden"
    phrase = draw_phrase(r, tense, subject, found if de in ("wo", "was") else "object")
    phrase = Phrase(phrase.verb) if de == "was" else phrase
    clause = draw_clause(r, tense, subject, phrase, time=("", "") if de == "wann" else None)
    return f"{de} {clause.first()}?", f"{en} {clause.english_question()}?"


def _because(r: Random) -> Pair:
    """Draws `Anna kocht heute Fisch, weil sie Hunger hat`, or one with `obwohl`."""
    subject, tense, draw = draw_subject(r), r.choice("nfp"), r.random()
    phrase, again = draw_phrase(r, tense, subject, lexicon.OUTINGS), subject.again()
    conjunction, conjunction_en = r.choice([("weil", "because"), ("obwohl", "although")])
    if tense == "f" or draw < 0.3:
        verbs = [verb for verb in lexicon.OUTINGS.split() if lexicon.VERBS[verb] != phrase.verb]
        other = draw_phrase(r, "m", again, " ".join(verbs))
        reason, tense = draw_clause(r, "m", again, other, time=("", "")), "f"
    elif draw < 0.6:
        reason = _weather(r, tense == "p", only_bad=conjunction == "obwohl")
    else:
        (*state, verbs), conjunction, conjunction_en = r.choice(lexicon.STATES), "weil", "because"
        phrase, reason = draw_phrase(r, tense, subject, verbs), be(again, *state, tense == "p")
    clause = draw_clause(r, tense, subject, phrase)
    de = f"{clause.second()}, {conjunction} {reason.final()}."
    return de, f"{clause.english()} {conjunction_en} {reason.english()}."


def _weather(r: Random, past: bool = False, only_bad: bool = False) -> Clause:
    """Draws a clause about the weather."""
    de, en, state_de, state_en = r.choice(lexicon.WEATHER[: 2 if only_bad else 4])
    return be(Subject(de, en, 2), "sein", state_de, state_en, past)


def _that(r: Random) -> Pair:
    """Draws `Ich glaube, dass er morgen in Berlin einkauft`."""
    sides = [("ich glaube", "I think"), ("ich weiß", "I know"), ("wir hoffen", "we hope")]
    de, en = r.choice([*sides, ("er sagt", "he says")])
    subject = draw_subject(r, middle=True, asked=de == "wir hoffen")
    tenses = "ffp" if subject.person > 1 else "p"  # Keeps down rare forms such as `mitnimmst`.
    clause = draw_clause(r, r.choice(tenses + "m" * (de != "wir hoffen")), subject)
    return f"{de}, dass {clause.final()}.", f"{en} that {clause.english()}."


def _when(r: Random) -> Pair:
    """Draws `Wenn ich müde bin, trinke ich Kaffee`; `wenn` decides the English tense."""
    subject, front = draw_subject(r), r.random() < 0.5
    again, (*state, verbs) = subject.again(), r.choice(lexicon.STATES)
    first, second = (subject, again) if front else (again, subject)
    when = be(first, *state)
    if r.random() < 0.3:
        when, verbs, second = _weather(r), lexicon.OUTINGS, subject
    main = draw_clause(r, "h", second, draw_phrase(r, "h", second, verbs), time=("", ""))
    if front:
        return f"wenn {when.final()}, {main.first()}.", f"when {when.english()}, {main.english()}."
    return f"{main.second()}, wenn {when.final()}.", f"{main.english()} when {when.english()}."


def _imperative(r: Random) -> Pair:
    """Draws `Mach bitte das Fenster auf!` or `Machen Sie bitte das Fenster auf!`."""
    subject, negated = r.choice([DU, SIE]), r.random() < 0.25
    phrase, (day, day_en) = draw_phrase(r, "m", subject, lexicon.REQUESTS), draw_time(r, "m")
    verb = phrase.verb
    stem = {"nehmen": "nimm", "warten": "warte"}.get(verb.infinitive, verb.infinitive[:-2])
    stem = f"{verb.infinitive} Sie" if subject is SIE else stem
    de, en = (phrase.de_not, phrase.en_not) if negated else (phrase.de, phrase.en)
    english = join("please", "do not" * negated, verb.english("base"), en, day_en)
    return join(stem, "bitte", day, de, verb.particle) + "!", english + "!"


def _who_relative(r: Random) -> Pair:
    """Draws `Die Frau, die gestern meine Mutter besucht hat, ist sehr nett`."""
    noun = draw_noun(r, "people")
    person, person_en = noun_phrase(noun, "nom", "der", draw_adjective(r, noun))
    relative = Subject(the(noun, "nom"), "who", 2, noun=noun)
    clause = draw_clause(r, r.choice("nhpm"), relative)
    kin = r.choice([kin for kin in lexicon.NOUNS["family"] if kin.gender == noun.gender])
    kin = noun_phrase(kin, "nom", draw_owner(r, kin))
    de, en = r.choice([kin, ("sehr nett", "very kind")])
    return f"{person}, {clause.final()}, ist {de}.", f"{person_en} {clause.english()} is {en}."


def _that_relative(r: Random) -> Pair:
    """Draws `Das ist der Hut, den er heute sucht` or `Der Hut, den er heute sucht, ist alt`."""
    noun, subject = draw_noun(r, "luggage", "clothes"), draw_subject(r, middle=True)
    tense, plural, named = r.choice("ppn"), r.random() < 0.3, r.random() < 0.4
    verbs = "suchen" if tense == "n" else "kaufen suchen finden"
    clause = draw_clause(r, tense, subject, Phrase(draw_phrase(r, tense, subject, verbs).verb))
    adjective = draw_adjective(r, noun) if named else None
    thing, thing_en = noun_phrase(noun, "nom", "der", adjective, plural)
    thing = f"{thing}, {the(noun, 'acc', plural)} {clause.final()}"
    thing_en = f"{thing_en} that {clause.english()}"
    be_de, be_en = FORMS["sein"][2 + plural], FORMS["be"][2 + plural]
    adjective = r.choice(lexicon.ADJECTIVES[noun.kind])
    if named:
        return f"das {be_de} {thing}.", f"{'those' if plural else 'that'} {be_en} {thing_en}."
    return f"{thing}, {be_de} {adjective.de}.", f"{thing_en} {be_en} {adjective.en}."


def _comparison(r: Random) -> Pair:
    """Draws `Mein Hut ist neuer als dein Mantel`, or one with `nicht so neu wie`."""
    kind = r.choice(["luggage", "clothes", "rooms", "switches", "family", "family"])
    nouns, owners = r.sample(lexicon.NOUNS[kind], 2), r.sample(lexicon.OWNERS, 2)
    (de, en), (de2, en2) = (noun_phrase(nouns[i], "nom", owners[i]) for i in range(2))
    words = lexicon.ADJECTIVES["people" if kind == "family" else kind]
    word = r.choice([word for word in words if word.de_more != "-"])
    forms = [
        (f"{de} ist {word.de_more} als {de2}.", f"{en} is {word.en_more} than {en2}."),
        (f"{de} ist nicht so {word.de} wie {de2}.", f"{en} is not as {word.en} as {en2}."),
        (f"ist {de} {word.de_more} als {de2}?", f"is {en} {word.en_more} than {en2}?"),
    ]
    return r.choice(forms)


def _help(r: Random) -> Pair:
    """Draws `Ich helfe morgen dem Lehrer`: a verb with the dative."""
    subject = draw_subject(r)
    (de, en), *_ = draw_people(r, "dat", other_than=subject.noun, described=True)
    phrase = Phrase(lexicon.VERBS["helfen"], de, en)
    return _statement(draw_clause(r, r.choice("nfhpm"), subject, phrase))


# The patterns and how often each is drawn, relative to all others.
PATTERNS: dict[Rule, int] = {
    _simple("nfh", Clause.second, Clause.english, "."): 90,
    _simple("nfhp", Clause.inverted, Clause.english_fronted, "."): 80,
    _simple("m", Clause.second, Clause.english, "."): 60,
    _simple("p", Clause.second, Clause.english, "."): 60,
    _simple("nfhpm", Clause.first, Clause.english_question, "?"): 70,
    _negation: 70,
    _w_question: 70,
    _because: 60,
    _that: 65,
    _when: 30,
    _imperative: 52,
    _who_relative: 50,
    _that_relative: 30,
    _comparison: 35,
    _help: 20,
}
