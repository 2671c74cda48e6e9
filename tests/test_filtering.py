"""`tf-transformer filter`: every reason, what is kept and written, and errors."""

import codecs
import gzip
import itertools
import os
import unicodedata

import pytest
from commands import assert_refused, run_here, small_files
from hypothesis import example, given
from hypothesis import strategies as st

from tf_transformer.data.filtering import PairFilter, script_words
from tf_transformer.data.lines import DataError, is_blank

SENTENCE = "Two dogs play in the snow of the Großglockner"
COPIED = "Ｔｗｏ dogs  PLAY in the ſnow of the GROSSGLOCKNER"
# One line of source, target, and why the pair is dropped.
PAIRS = [
    ("Zwei Hunde spielen im Schnee.", "Two dogs play in the snow.", None),
    ("Ja.", "Yes, of course.", None),
    ("\u200b \t", "Two dogs", "with a blank side"),
    ("Zwei Hunde", "", "with a blank side"),
    ("Hund " * 20, "dogs " * 20, None),
    ("Hund " * 20, "dogs " * 20 + ".", "with a side of more than 100 characters"),
    ("Zwei Hunde", SENTENCE, "whose lengths do not fit together"),
    (SENTENCE, "Hunde", "whose lengths do not fit together"),
    ("Две собаки играют", "Two dogs play here", "in another script"),
    ("Zwei Hunde spielen", "Две собаки играют", "in another script"),
    ("Zwei Hunde (собаки)", "Two dogs (собаки)", None),  # most letters are Latin
    ("12:30 – 13:45", "12.30 to 13.45", None),
    ("12:30 – 13:45", "12.30 — 13.45", None),  # no letters have no script
    (SENTENCE, COPIED, "whose target is its source"),
    ("Two dogs", "»two dogs…", "whose target is its source"),
    ("http://собаки.example %1$s", "http://собаки.example %1$s", None),  # has nothing to translate
    ("Ein Mann schläft.", "the test  SET has this", "with an excluded line"),
    ("The test set has this", "Ein Mann schläft.", "with an excluded line"),
    ("Zwei Hunde spielen im Schnee.", "Two dogs play in the snow.", "that occurred before"),
    ("Zwei Hunde spielen im Schnee.", "two dogs play in the snow.", None),  # not the same
]
EXCLUDED = ["", "The test set has this", "Somebody else"]

WORDS = "house table water bread light stone river cloud chair paper window garden".split()
ENGLISH = [
    f"The {a} {b} of the {c} is no longer here" for a, b, c in itertools.permutations(WORDS, 3)
][:400]
CHINESE = [chr(0x4E00 + number) * 8 for number in range(400)]


def options_of(folder, **others):
    options = {name: folder / name for name in ("source", "target", "output-source")}
    options |= {"output-target": folder / "output-target", **others}
    return ["filter", *(f"--{name}={value}" for name, value in options.items() if value)]


def write(path, lines, pack=None):
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(pack(content) if pack else content)


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of `PAIRS` and of `EXCLUDED`."""
    sources, targets, _ = zip(*PAIRS, strict=True)
    write(tmp_path / "source", sources)
    write(tmp_path / "target", targets)
    write(tmp_path / "test.gz", EXCLUDED, gzip.compress)
    return tmp_path


SETTINGS = ["--max-characters=100", "--source-script=Latin", "--target-script", "latin", "Greek"]


def test_every_reason_is_counted_and_the_others_are_kept(folder):
    nothing = {"output-source": None, "output-target": None}
    counted = run_here(*options_of(folder, **nothing, exclude=folder / "test.gz"), *SETTINGS)
    assert len(list(folder.iterdir())) == 3, "without outputs nothing is written"
    done = run_here(*options_of(folder, exclude=folder / "test.gz"), *SETTINGS)
    assert done.stderr == "" and counted.stdout == done.stdout.replace("Kept", "Would keep")
    reasons = [reason for *_, reason in PAIRS]
    first, *dropped, last = done.stdout.splitlines()
    assert first.startswith(f"{len(PAIRS)} pairs; ")
    assert sorted(dropped) == sorted(
        f"Dropped {reasons.count(reason)} {reason}, such as line {reasons.index(reason) + 1}."
        for reason in set(reasons) - {None}
    )
    assert last == f"Kept {reasons.count(None)} pairs."
    for side, name in enumerate(("output-source", "output-target")):
        kept = [pair[side] for pair in PAIRS if pair[-1] is None]
        assert (folder / name).read_text("utf-8").splitlines() == kept
    assert len(list(folder.iterdir())) == 5


@pytest.mark.parametrize(("option", "kept"), [([], 400), (["--keep-copies"], 1000)])
def test_a_catalogue_that_is_mostly_untranslated_keeps_its_translations(tmp_path, option, kept):
    copies = [f"Copy the file {number}" for number in range(600)]
    write(tmp_path / "source", [*copies, *ENGLISH])
    write(tmp_path / "target", [*copies, *CHINESE])
    done = run_here(*options_of(tmp_path), "--target-script=Han", *option)
    assert done.stdout.splitlines()[-1] == f"Kept {kept:,} pairs."
    assert "characters is 0.17" in done.stdout.splitlines()[0]


def test_lines_stay_as_they_are_and_may_be_packed(tmp_path):
    sources, targets = ["ein\u2028s", " Zwei ", "drei"], ["one\x85", "two", "three"]
    text = codecs.BOM_UTF8 + "\r\n".join(sources).encode()
    (tmp_path / "source").write_bytes(gzip.compress(text))
    write(tmp_path / "target", targets)
    packed = {f"output-{side}": tmp_path / f"new.{side}.gz" for side in ("source", "target")}
    contents = []
    for option in ([], ["--overwrite"]):
        run_here(*options_of(tmp_path, **packed), *option)
        contents.append([path.read_bytes() for path in packed.values()])
    assert contents[0] == contents[1]
    assert {content[4:8] for content in contents[0]} == {bytes(4)}, "no time"
    for content, lines in zip(contents[0], (sources, targets), strict=True):
        assert gzip.decompress(content).decode() == "".join(f"{line}\n" for line in lines)


def plain(text):
    """What makes no difference to copies is removed; see `normalized`."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


LATIN = script_words(["Latin"])
lines = st.text("aAbж \u200b1", max_size=7)


@given(pairs=st.lists(st.tuples(lines, lines), min_size=1, max_size=12), excluded=st.sets(lines))
@example(pairs=[("ab", "c"), ("a", "bc")], excluded=set())
@example(pairs=[("a", "b\nc"), ("a\nb", "c")], excluded={"a"})
def test_what_is_kept_has_none_of_the_faults(pairs, excluded):
    rules = PairFilter(1.2, 6, (LATIN, ()), excluded, length_ratio=1.0)
    reasons = [rules.reason_to_drop(*pair) for pair in pairs]
    forbidden = {plain(line) for line in excluded if not is_blank(line)}
    expected = []
    for source, target in pairs:
        ascii_letters = [c.isascii() for c in plain(source) if c.isalpha()]
        lengths = sorted((len(source), len(target)))
        is_good = (
            not is_blank(source)
            and not is_blank(target)
            and lengths[1] <= 6
            and lengths[1] + 10 <= 1.2 * (lengths[0] + 10)
            and 2 * sum(ascii_letters) >= len(ascii_letters)
            and (plain(source) != plain(target) or not any(map(str.isalpha, source)))
            and not {plain(source), plain(target)} & forbidden
            and (source, target) not in expected
        )
        if is_good:
            expected.append((source, target))
    assert [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason] == expected


def ratio_and_kept(pairs, **rules):
    rules = PairFilter(2.5, 1000, **rules)
    rules.measure_lengths(pairs)
    return rules.length_ratio, sum(rules.reason_to_drop(*pair) is None for pair in pairs)


@pytest.mark.parametrize(
    ("others", "rules", "num_kept"),
    [
        ([(f"{line} (left)", f"{line} (left)") for line in ENGLISH * 2], {}, 0),
        ([(line, f"{line.upper()} .") for line in ENGLISH * 2], {}, 0),
        ([(line, line) for line in ENGLISH], {"keep_copies": True}, 400),
        ([(f"http://x.com/{n}/some/page",) * 2 for n in range(900)], {}, 900),
        ([(f"<b>%PRODUCTNAME</b> $(CAPACITY) {{0}} {n}",) * 2 for n in range(900)], {}, 900),
        ([(f"%1$s %d {n} -- {{name}}", f"{{name}} %1$s %d -- {n}") for n in range(900)], {}, 900),
        ([("Yes", "雪" * 15)] * 900, {}, 1),
        ([("\u200b", f"nothing {line}") for line in ENGLISH * 3], {}, 0),
        ([(line, "long" * 300) for line in ENGLISH * 3], {}, 0),
        ([(line, "Слова из того языка" + str(line)) for line in ENGLISH], {}, 0),
        ([(f"a {line}", "雪" * 30) for line in ENGLISH], {"excluded": ["雪" * 30]}, 0),
    ],
    ids=range(11),
)  # fmt: skip
def test_pairs_that_are_no_translations_do_not_set_the_usual_ratio(others, rules, num_kept):
    scripts = script_words(["Latin"]), script_words(["Han"])
    pairs = [*others, *zip(ENGLISH, CHINESE, strict=True)]
    alone, kept = ratio_and_kept(pairs[-400:], scripts=scripts)
    assert kept == 400
    assert ratio_and_kept(pairs, scripts=scripts, **rules) == (alone, 400 + num_kept)


@pytest.mark.parametrize("text", ["5 km", "LibreOffice", "Größe: %s", "a", "{0} Uhr", "[NEU]"])
def test_what_has_letters_beside_placeholders_may_be_a_copy(text):
    scripts = LATIN, script_words(["Han"])
    rules = (PairFilter(1.1, 99, scripts, (), keep, 99.0) for keep in (False, True))
    reasons = [rule.reason_to_drop(text, text) for rule in rules]
    assert reasons == ["whose target is its source", None]


def test_the_usual_ratio_is_the_median():
    lengths = [(10, 12), (5, 50), (10, 11)]
    assert ratio_and_kept([("a" * n, "b" * m) for n, m in lengths])[0] == 1.2
    assert ratio_and_kept([("12", "13"), ("a", "a"), ("", "b")])[0] == 1.0, "nothing to measure"


def test_lengths_are_compared_with_what_is_usual_in_the_corpus():
    chinese = PairFilter(2.5, 1000, length_ratio=0.3)
    assert chinese.reason_to_drop(SENTENCE * 3, "雪" * 40) is None
    assert chinese.reason_to_drop(SENTENCE * 3, SENTENCE * 3 + "!") is not None


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ("Han", "雪"), ("Hiragana", "ゆき"), ("Katakana", "ユキ ﾕｷ"), ("Hangul", "눈"),
        ("Cyrillic", "снег"), ("Devanagari", "बर्फ़"), ("Thai", "หิมะ"), ("Arabic", "ثلج"),
        ("canadian_aboriginal", "ᐊᐳᑦ"), ("Latin", "ｓｎｏｗ ﬁ é"), ("Greek", "χιόνι"),
    ],
)  # fmt: skip
def test_scripts_go_by_their_names_in_unicode(script, texts):
    for text in texts.split():
        rules = [PairFilter(9, 99, ((), script_words(names))) for names in ([script], ["Lao"])]
        assert rules[0].reason_to_drop("x y", text) is None
        assert rules[1].reason_to_drop("x y", text) == "in another script"


@pytest.mark.parametrize(
    ("script", "words"),
    [("Latn", "did you mean 'LATIN'"), ("1", "Latin, Cyrillic"), ("Kelvin", "unknown")],
)
def test_an_unknown_script_is_named(script, words):
    with pytest.raises(DataError, match=words):
        script_words([script])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"output-target": None}, ["Give both or none"]),
        ({"source": "{}/none"}, ["none: is no file"]),
        ({"source": "{}/pipe"}, ["pipe: is no file.*twice"]),
        ({"target": "{}/test.gz"}, ["source has 20 but .*test.gz has 3 lines"]),
        ({"exclude": "{}/empty"}, ["empty: the file is empty"]),
        ({"output-source": "{}/output-target"}, ["output-target: is given twice"]),
        ({"output-target": "{}/./test.gz"}, ["test.gz: is given twice"]),
        ({"output-target": "{}/folder"}, ["folder: exists already"]),
        ({"output-target": "/dev/null"}, ["/dev/null: exists already. Give the path of a file"]),
        ({"output-target": "{}/none/x"}, ["none/x: its folder does not exist"]),
        ({"max-ratio": "1"}, ["--max-ratio: .*greater than 1"]),
        ({"source-script": "Latn"}, ["Latn is unknown; did you mean"]),
        ({"max-characters": "1"}, ["no pair of 20 is left; dropped were 18 .*1; .* 2 .*3[.]"]),
    ],
    ids=str,
)
def test_what_cannot_be_filtered_is_named_and_writes_nothing(folder, capfd, given, words):
    os.mkfifo(folder / "pipe")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    given = {name: value and value.format(folder) for name, value in given.items()}
    arguments = options_of(folder, **{"exclude": folder / "test.gz", **given})
    assert_refused([*arguments, "--overwrite"], words, capfd, folder)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("limit", [1000, 40_000])  # the buffer is written at the end, and before
@pytest.mark.parametrize("large", ["source", "target"])
def test_an_output_that_does_not_fit_on_the_disk_is_named(tmp_path, capfd, large, limit, suffix):
    for side in ("source", "target"):
        words = 9 if side == large else 0
        write(tmp_path / side, [f"{n * n * 7919 % 10**9:09} " * words + "e" for n in range(900)])
    given = {f"output-{side}": f"{tmp_path / side}.new{suffix}" for side in ("source", "target")}
    capfd.readouterr()  # its file, too, must be small
    with small_files(max(1000, limit // (9 if suffix else 1))):
        arguments = [*options_of(tmp_path, **given), "--max-ratio=1e9"]
        assert_refused(arguments, [f"{large}.new{suffix}: File too large[.]$"], capfd, tmp_path)


def test_outputs_are_replaced_only_when_told(folder, capfd):
    (folder / "output-target").write_text("hours of work\n")
    words = ["output-target: exists already. Give --overwrite"]
    assert_refused(options_of(folder), words, capfd, folder)
    assert (folder / "output-target").read_text() == "hours of work\n"
    run_here(*options_of(folder), "--overwrite")
    assert "Two dogs" in (folder / "output-target").read_text()


def test_text_that_cannot_be_read_to_its_end_leaves_no_output(folder, capfd):
    whole = gzip.compress((folder / "source").read_bytes())
    (folder / "source").write_bytes(whole[:-9])
    assert_refused(options_of(folder), ["source: damaged or incomplete gzip"], capfd, folder)


def test_shards_keep_together_what_the_whole_keeps(tmp_path):
    pairs = list(zip(ENGLISH, CHINESE, strict=True)) * 2  # each occurs twice, far apart
    write(tmp_path / "source", [source for source, _ in pairs])
    write(tmp_path / "target", [target for _, target in pairs])
    found, number = [], 0
    for index in range(1, 4):
        outputs = [tmp_path / f"{side}{index}" for side in ("source", "target")]
        options = {"output-source": outputs[0], "output-target": outputs[1]}
        done = run_here(*options_of(tmp_path, **options, shard=f"{index}/3"))
        kept = [path.read_text("utf-8").splitlines() for path in outputs]
        assert 60 < len(kept[0]) < 200, "about a third"
        number += int(done.stdout.split()[0])
        found += zip(*kept, strict=True)
    assert number == len(pairs)
    assert sorted(found) == sorted(zip(ENGLISH, CHINESE, strict=True))
    again = run_here(*options_of(tmp_path, **options, shard="3/3"))
    assert again.stdout.count("are complete already") == 1
