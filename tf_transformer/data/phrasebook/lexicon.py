"""The lexicon: the words of both languages, as tables, and the entries read from them.

Forms by person are those of `ich`, `du`, `er` and the plural: 0 to 3.
"""

import dataclasses
from collections.abc import Callable
from random import Random

Pair = tuple[str, str]  # German, English.
Rule = Callable[[Random], Pair]  # Draws a sentence, or a part of one.

# Nouns: German, gender, German plural, English. One line for each class of meaning.
_NOUN_TABLE = """
luggage: Koffer m Koffer suitcase, Tasche f Taschen bag, Regenschirm m Regenschirme umbrella
luggage: Handy n Handys phone, Kamera f Kameras camera
papers: Fahrkarte f Fahrkarten ticket, Schlüssel m Schlüssel key
clothes: Jacke f Jacken jacket, Hemd n Hemden shirt, Hut m Hüte hat, Mantel m Mäntel coat
texts: Buch n Bücher book, Zeitung f Zeitungen newspaper
letters: Brief m Briefe letter
machines: Fahrrad n Fahrräder bicycle, Auto n Autos car, Computer m Computer computer
switches: Lampe f Lampen lamp, Radio n Radios radio, Fernseher m Fernseher television
openings: Fenster n Fenster window, Tür f Türen door
rooms: Zimmer n Zimmer room, Küche f Küchen kitchen
meals: Suppe f - soup, Fisch m - fish, Reis m - rice
snacks: Brot n - bread, Käse m - cheese, Kuchen m - cake, Salat m - salad
fruits: Apfel m Äpfel apple, Ei n Eier egg, Tomate f Tomaten tomato, Orange f Orangen orange
drinks: Wasser n - water, Milch f - milk, Bier n - beer, Wein m - wine
cups: Kaffee m - coffee, Tee m - tea
family: Bruder m Brüder brother, Schwester f Schwestern sister, Freund m Freunde friend
family: Sohn m Söhne son, Tochter f Töchter daughter, Nachbarin f Nachbarinnen neighbour
parents: Mutter f - mother, Vater m - father, Chef m - boss
people: Mann m Männer man, Frau f Frauen woman, Lehrer m Lehrer teacher
people: Ärztin f Ärztinnen doctor
children: Kind n Kinder child
places: Museum n - museum, Bahnhof m - station, Hotel n - hotel, Park m - park, Schule f - school
places: Kirche f - church, Markt m - market, Bibliothek f - library, Flughafen m - airport
places: Apotheke f - pharmacy, Restaurant n - restaurant
vehicles: Zug m - train, Bus m - bus
"""
# Adjectives: German, its stem before endings, English, both comparatives; classes of nouns.
_ADJECTIVE_TABLE = """
neu neu new neuer newer luggage papers clothes texts machines switches
alt alt old älter older luggage clothes texts machines switches people
groß groß big größer bigger luggage machines openings rooms switches
klein klein small kleiner smaller luggage machines openings rooms switches children
teuer teur expensive teurer more_expensive luggage clothes machines switches
schön schön beautiful schöner more_beautiful clothes rooms
rot rot red - - luggage clothes machines switches
schwarz schwarz black - - luggage clothes machines switches
jung jung young jünger younger people
frisch frisch fresh - - snacks fruits, kalt kalt cold - - drinks, heiß heiß hot - - cups
"""
# Verbs: infinitive with `|` after a separable particle, du, er, participle (`*` with sein),
# English and its past.
_VERB_TABLE = """
kaufen kaufst kauft gekauft buy bought, suchen suchst sucht gesucht look_for looked
finden findest findet gefunden find found, vergessen vergisst vergisst vergessen forget forgot
reparieren reparierst repariert repariert repair repaired, lesen liest liest gelesen read read
schreiben schreibst schreibt geschrieben write wrote, trinken trinkst trinkt getrunken drink drank
essen isst isst gegessen eat ate, kochen kochst kocht gekocht cook cooked
bestellen bestellst bestellt bestellt order ordered
besuchen besuchst besucht besucht visit visited, helfen hilfst hilft geholfen help helped
arbeiten arbeitest arbeitet gearbeitet work worked, warten wartest wartet gewartet wait waited
fahren fährst fährt *gefahren go went, brauchen brauchst braucht gebraucht need needed
an|rufen rufst ruft angerufen call called, ab|holen holst holt abgeholt pick_up picked
ein|laden lädst lädt eingeladen invite invited
mit|nehmen nimmst nimmt mitgenommen take_along took, an|ziehen ziehst zieht angezogen put_on put
auf|machen machst macht aufgemacht open opened, zu|machen machst macht zugemacht close closed
an|machen machst macht angemacht turn_on turned
aus|machen machst macht ausgemacht turn_off turned
auf|räumen räumst räumt aufgeräumt tidy_up tidied, ein|kaufen kaufst kauft eingekauft shop shopped
auf|stehen stehst steht *aufgestanden get_up got
an|kommen kommst kommt *angekommen arrive arrived
"""
# Frames: verb; determiners (d der, e ein, p mein and so on, 0 none, 2 a number); tenses (n now,
# f future, h habit, p past, m with a modal verb); classes of the object, or a kind of adverbial.
# Frames that occur twice, in the last line, are drawn more often.
_FRAME_TABLE = """
kaufen de2 nfpm luggage clothes texts machines switches, kaufen 02 nfhpm snacks fruits drinks
suchen dp npm luggage papers clothes, finden dp pm luggage papers clothes
vergessen dp p luggage papers, reparieren dp pm machines switches, lesen de nfhpm texts letters
schreiben e2 pm letters, trinken 0 nfhpm drinks, trinken 0 nfhpm cups
essen 02 nfhpm meals snacks fruits, kochen 0 nfhpm meals
bestellen 0 nfhpm meals snacks drinks cups, besuchen p nfhpm family parents
anrufen p nfhpm family parents people, abholen p nfhpm family children people
einladen p nfhpm family people, mitnehmen dp nfhpm luggage papers, anziehen dep nfpm clothes
aufmachen d nfpm openings, zumachen d nfpm openings, anmachen d nfpm switches
ausmachen d nfpm switches, aufräumen dp nfhpm rooms, arbeiten - nfhpm @place, warten - nfhpm @wait
fahren - nfhpm @travel, einkaufen - nfhpm @city, aufstehen - fhpm @clock, ankommen - fhpm @arrival
anziehen dep nfpm clothes, aufstehen - fhpm @clock, lesen de nfhpm texts letters
"""
# Which time goes with which tense: this is how German tells the English tense.
_TIME_TABLE = {
    "n": "heute = today, jetzt = now",
    "f": "morgen = tomorrow, heute Abend = this evening, am Freitag = on Friday, "
    "am Montag = on Monday, nächste Woche = next week",
    "h": "jeden Tag = every day, jede Woche = every week, oft = often, manchmal = sometimes",
    "p": "gestern = yesterday, gestern Abend = yesterday evening, am Freitag = on Friday, "
    "am Montag = on Monday, letzte Woche = last week",
    "m": " = , heute = today, morgen = tomorrow, jetzt = now, heute Abend = this evening",
}
MODALS = {  # English, and German by person. The last is not negated here.
    "can": "kann kannst kann können".split(),
    "should": "sollte solltest sollte sollten".split(),
    "want to": "will willst will wollen".split(),
    "have to": "muss musst muss müssen".split(),
    "would like to": "möchte möchtest möchte möchten".split(),
}
FORMS = {  # By person, in the present and then, from 4 on, in the past.
    "sein": "bin bist ist sind war warst war waren".split(),
    "haben": "habe hast hat haben hatte hattest hatte hatten".split(),
    "brauchen": "brauche brauchst braucht brauchen".split(),
    "be": "am are is are was were was were".split(),
    "have": "have have has have".split(),
    "do": "do do does do".split(),
    "need": "need need needs need".split(),
    "want": "want want wants want".split(),
}
STATES = [  # German uses two verbs where English has only `be`; last, what one does then.
    ("sein", "müde", "tired", "trinken:cups anrufen fahren"),
    ("sein", "krank", "ill", "anrufen"),
    ("sein", "glücklich", "happy", "kochen anrufen besuchen"),
    ("haben", "Hunger", "hungry", "essen kochen"),
    ("haben", "Durst", "thirsty", "trinken:drinks"),
]
OUTINGS = "besuchen anrufen abholen arbeiten fahren einkaufen warten"
REQUESTS = "kaufen anrufen abholen mitnehmen anziehen aufmachen zumachen anmachen ausmachen"
REQUESTS += " aufräumen warten"
# The weather, first the bad.
WEATHER = [("das Wetter", "the weather", "schlecht", "bad"), ("es", "it", "kalt", "cold")]
WEATHER += [("das Wetter", "the weather", "schön", "nice"), ("es", "it", "warm", "warm")]
CITIES = [("Berlin", "Berlin"), ("Wien", "Vienna"), ("München", "Munich"), ("Köln", "Cologne")]
NAMES = {"Anna": "f", "Julia": "f", "Peter": "m", "Thomas": "m"}
AT = {"Bahnhof": "an", "Flughafen": "an", "Markt": "auf"}  # `at`; other places are `in`.
BESIDE = [("neben", "next to"), ("vor", "in front of"), ("hinter", "behind")]
POSSESSIVES = {"ich": "mein", "du": "dein", "er": "sein", "wir": "unser", "Sie": "Ihr"}
POSSESSIVES_EN = dict(mein="my", dein="your", sein="his", unser="our", Ihr="your")
OWNERS = ["mein", "dein", "sein", "unser"]
_PLURALS_EN = {"man": "men", "woman": "women", "child": "children", "tomato": "tomatoes"}
_SMALL_DE = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
_SMALL_EN = "zero one two three four five six seven eight nine ten eleven twelve".split()
_TENS_DE = "zwanzig dreißig vierzig fünfzig".split()
_TENS_EN = "twenty thirty forty fifty".split()


@dataclasses.dataclass(frozen=True)
class Noun:
    """A noun: German, its gender `m`, `f` or `n`, its German plural, English, its class."""

    de: str
    gender: str
    de_plural: str
    en: str
    kind: str

    @property
    def en_plural(self) -> str:
        """Returns the English plural."""
        return _PLURALS_EN.get(self.en, self.en + "s")


@dataclasses.dataclass(frozen=True)
class Adjective:
    """An adjective: German, its stem before endings, English, and the comparatives."""

    de: str
    stem: str
    en: str
    de_more: str
    en_more: str


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb: particle, infinitive without it, the forms of the tables, and English."""

    particle: str
    infinitive: str
    du: str
    er: str
    participle: str
    en: str
    en_past: str

    def finite(self, person: int) -> str:
        """Returns the German present of a person (0 to 3), without the particle."""
        return (self.infinitive[:-1], self.du, self.er, self.infinitive)[person]

    def english(self, form: str) -> str:
        """Returns the English `base`, `s`, `ing` or `past` form, with words such as `up`."""
        head, *rest = self.en.split("_")
        double = head[-1] if head in ("get", "put", "shop", "forget") else ""
        tidy = head[:-1] + "ies" if head.endswith("y") and head[-2] not in "aeiou" else head + "s"
        forms = {
            "base": head,
            "s": "goes" if head == "go" else tidy,
            "ing": (head[:-1] if head.endswith("e") else head + double) + "ing",
            "past": self.en_past,
        }
        return join(forms[form], *rest)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Use of a verb: determiners, tenses and object classes, named such as `trinken:cups`."""

    name: str
    verb: Verb
    dets: str
    tenses: str
    kinds: list[str]


def join(*words: str) -> str:
    """Joins the words that are not empty."""
    return " ".join(word for word in words if word)


def number(n: int) -> Pair:
    """Returns a number from 2 to 12 or 20 to 59 in words."""
    if n <= 12:
        return _SMALL_DE[n], _SMALL_EN[n]
    tens, unit = n // 10 - 2, n % 10
    if not unit:
        return _TENS_DE[tens], _TENS_EN[tens]
    return f"{_SMALL_DE[unit]}und{_TENS_DE[tens]}", f"{_TENS_EN[tens]}-{_SMALL_EN[unit]}"


def _rows(table: str) -> list[list[str]]:
    """Splits a table into entries, and each entry into words."""
    return [entry.split() for line in table.strip().split("\n") for entry in line.split(", ")]


def _read_nouns() -> dict[str, list[Noun]]:
    """Reads the nouns, by class."""
    nouns: dict[str, list[Noun]] = {}
    for line in _NOUN_TABLE.strip().split("\n"):
        kind, entries = line.split(": ")
        for row in _rows(entries):
            nouns.setdefault(kind, []).append(Noun(*row, kind))
    return nouns


def _read_adjectives() -> dict[str, list[Adjective]]:
    """Reads the adjectives, by the class of the nouns they go with."""
    adjectives = {kind: [] for kind in NOUNS}
    for row in _rows(_ADJECTIVE_TABLE):
        adjective = Adjective(*[form.replace("_", " ") for form in row[:5]])
        for kind in row[5:]:
            adjectives[kind].append(adjective)
    return adjectives


def _read_verbs() -> dict[str, Verb]:
    """Reads the verbs, by infinitive."""
    verbs = {}
    for name, *forms in _rows(_VERB_TABLE):
        particle, _, infinitive = name.rpartition("|")
        verbs[particle + infinitive] = Verb(particle, infinitive, *forms)
    return verbs


def _read_times() -> dict[str, list[Pair]]:
    """Reads the times, by tense."""
    return {
        tense: [tuple(time.split(" = ")) for time in times.split(", ")]
        for tense, times in _TIME_TABLE.items()
    }


NOUNS, VERBS, TIMES = _read_nouns(), _read_verbs(), _read_times()
ADJECTIVES = _read_adjectives()
FRAMES = [
    Frame(f"{row[0]}:{row[3]}", VERBS[row[0]], *row[1:3], row[3:]) for row in _rows(_FRAME_TABLE)
]
