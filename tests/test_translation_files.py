"""Files of translators: what is filled, and that all else stays equal byte by byte."""

import re
import shutil
import subprocess

import hypothesis
import pytest
from commands import refusal
from hypothesis import strategies as st

from tf_transformer.data.lines import DataError
from tf_transformer.data.pieces import SIGNS, VERBATIM
from tf_transformer.data.translation_files import open_document, read_pairs
from tf_transformer.data.translation_files.markup import is_balanced

SHOWN = str.maketrans(dict(zip(VERBATIM, "[]", strict=True)))


def _filled(folder, name, content, translate=str.upper):
    """Return the sources and the filled text of a file."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    document = open_document(path)
    texts = [_without_signs(source) for source in document.to_translate]
    shown = [source.translate(SHOWN) for source in document.to_translate]
    return shown, document.filled(list(map(translate, texts))).decode()


def _without_signs(source):
    """A source as it is after translation: the signs around what is copied are gone."""
    return re.sub(SIGNS, "", source)


def _xliff(content, version="1.2", more=""):
    return f'<xliff version="{version}"{more}><file><body>{content}</body></file></xliff>'


HEADER = (
    'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals={}; plural=0;\\n"\n\n'
)


def test_po_fills_only_what_is_not_translated(tmp_path):
    done = 'msgid "a"\nmsgstr "b"\n\n#, fuzzy\nmsgid "c"\nmsgstr "d"\n\n#, fuzzy\n#~ msgid "e"\n'
    done = HEADER.format(2) + "# person\n" + done + '#~ msgstr "f"\n\n'
    sources, text = _filled(tmp_path, "a.po", done + '#: x.c\nmsgctxt "m"\nmsgid "new"\nmsgstr ""')
    assert sources == ["new"]
    assert text == done + '#: x.c\n#, fuzzy\nmsgctxt "m"\nmsgid "new"\nmsgstr "NEW"'
    assert list(read_pairs(tmp_path / "a.po")) == [("a", "b")]


def test_po_flag_joins_other_flags_and_stands_before_the_previous_text(tmp_path):
    entries = '#, {}c-format\n#| msgid "o"\nmsgid "a"\nmsgstr "{}"\n\n'
    entries += '{}#| msgid "o"\nmsgid "b"\nmsgstr "{}"\n'
    _, text = _filled(tmp_path, "a.po", entries.format("", "", "", ""))
    assert text == entries.format("fuzzy, ", "A", "#, fuzzy\n", "B")


@pytest.mark.parametrize(
    ("num_plurals", "expected"),
    [(1, ["MANY\\n"]), (2, ["ONE\\n", "MANY\\n"]), (3, ["ONE\\n", "MANY\\n", "MANY\\n"])],
)
def test_po_fills_all_plural_forms(tmp_path, num_plurals, expected):
    entry = 'msgid "one\\n"\nmsgid_plural "many\\n"\nmsgstr[0] ""\n'
    _, text = _filled(tmp_path, "a.po", HEADER.format(num_plurals) + entry)
    assert re.findall(r'msgstr\[\d\] "(.*)"', text) == expected
    assert text.count("#, fuzzy") == 1


def test_po_keeps_crlf_white_space_and_escapes(tmp_path):
    content = 'msgid ""\r\n"\\n a\\t\\"b\\"\\\\\\n"\r\n"c\\n"\r\nmsgstr ""\r\n'
    sources, text = _filled(tmp_path, "a.po", content)
    assert sources == ['a\t"b"\\\nc']
    end = 'msgstr ""\r\n"\\n"\r\n" A\\t\\"B\\"\\\\\\n"\r\n"C\\n"\r\n'
    assert text == "#, fuzzy\r\n" + content.replace('msgstr ""\r\n', end)


def test_po_uses_the_charset_of_its_header(tmp_path):
    content = HEADER.format(2).replace("UTF-8", "ISO-8859-1") + 'msgid "ü"\nmsgstr ""\n'
    (tmp_path / "a.po").write_bytes(content.encode("latin-1"))
    document = open_document(tmp_path / "a.po")
    assert document.to_translate == ["ü"]
    assert 'msgstr "Ü"'.encode("latin-1") in document.filled(["Ü"])
    with pytest.raises(DataError, match="lacks 'ж'"):
        document.filled(["ж"])


@pytest.mark.skipif(not shutil.which("msgfmt"), reason="needs gettext")
def test_msgfmt_accepts_filled_files(tmp_path):
    entry = '#, c-format\nmsgid "\\n%d file\\n"\nmsgid_plural "\\n%d files\\n"\nmsgstr[0] ""\n'
    _, text = _filled(tmp_path, "a.po", HEADER.format(3) + entry, lambda source: source + "!")
    (tmp_path / "b.po").write_text(text)
    subprocess.run(["msgfmt", "-c", "-f", "-o", "/dev/null", tmp_path / "b.po"], check=True)


def test_xliff_inserts_targets_after_sources(tmp_path):
    unit = '<trans-unit id="{}">\n  <source>{}</source>{}\n  <note>n</note>\n</trans-unit>'
    rest = _xliff(
        unit.format(1, "a <g id='1'>b</g> &lt;c&gt; <![CDATA[<d>&]]>", "@")
        + unit.format(2, "e", "<target>f</target>")
        + unit.format(3, "e", "<target/>").replace("id", 'approved="yes" id')
        + f'<group translate="no">{unit.format(4, "e", "")}</group>'
        + unit.format(5, "e<x/>", "<seg-source>e<x/></seg-source>@")
    )
    sources, text = _filled(tmp_path, "a.xlf", rest.replace("@", ""), lambda s: s)
    assert sources == ["a <g id='1'>b</g> <c> <d>&", "e"]
    target = '\n  <target state="needs-review-translation">{}</target>'
    first = target.format("a <g id='1'>b</g> &lt;c&gt; &lt;d&gt;&amp;")
    assert text == rest.replace("@", first, 1).replace("@", target.format("e<x/>"))


def test_xliff_fills_empty_targets_and_keeps_their_attributes(tmp_path):
    unit = "<trans-unit><source> a </source>{}</trans-unit>"
    empty = '<target xml:lang="de" state="new" />'
    _, text = _filled(tmp_path, "a.xlf", _xliff(unit.format(empty)))
    target = '<target xml:lang="de" state="needs-review-translation"> A </target>'
    assert text == _xliff(unit.format(target))


def test_xliff_2_marks_what_nobody_reviewed(tmp_path):
    content = '<unit><segment{}><source>Hi <ph id="1"/> you</source>{}</segment></unit>'
    start = _xliff(content.format(' id="1" state="initial"', ""), "2.0", ' trgLang="de"')
    _, text = _filled(tmp_path, "a.xlf", start, lambda s: s.replace("Hi", "Ho"))
    state = ' id="1" state="translated" subState="tf-transformer:unreviewed"'
    target = '<target>Ho <ph id="1"/> you</target>'
    assert text == _xliff(content.format(state, target), "2.0", ' trgLang="de"')
    (tmp_path / "b.xlf").write_text(text)
    assert list(read_pairs(tmp_path / "b.xlf")) == []
    (tmp_path / "b.xlf").write_text(re.sub("translated.*?unreviewed", "reviewed", text))
    assert list(read_pairs(tmp_path / "b.xlf")) == [("Hi you", "Ho you")]


@pytest.mark.parametrize(
    ("source", "expected"),
    {
        'a <ph id="1">&lt;br/></ph> b': 'a [<ph id="1">&lt;br/></ph>] b',
        "a <x:ph>c</x:ph> b": "a [<x:ph>c</x:ph>] b",
        'a <it d="&lt;br/>">c</it> b': 'a [<it d="&lt;br/>">c</it>] b',
        "a <bpt>{b}</bpt>b<ept>{/b}</ept> c": "a [<bpt>{b}</bpt>]b[<ept>{/b}</ept>] c",
        'a <mrk mtype="protected">b</mrk> c': 'a [<mrk mtype="protected">b</mrk>] c',
        "a <mrk id='1' translate='no'>b</mrk> c": "a [<mrk id='1' translate='no'>b</mrk>] c",
        "a <mrk mtype='protected'>b <mrk>c</mrk></mrk> d<mrk mtype='protected'/> <mrk>e</mrk>": (
            "a [<mrk mtype='protected'>b <mrk>c</mrk></mrk>] d<mrk mtype='protected'/> <mrk>e</mrk>"
        ),
        "\n  a <g>b\n  c</g>\n": "a <g>b c</g>",
        "a <!-- <no> --> b": "a [<!-- <no> -->] b",
    }.items(),
)
def test_what_is_copied_is_one_piece(tmp_path, source, expected):
    content = _xliff(f"<trans-unit><source>{source}</source>@</trans-unit>")
    sources, text = _filled(tmp_path, "a.xlf", content.replace("@", ""), lambda s: s)
    assert sources == [expected]
    copied = re.sub(r"[\[\]]", "", expected)
    if "\n" in source:
        copied = f"\n  {copied}\n"
    assert text == content.replace(
        "@", f'<target state="needs-review-translation">{copied}</target>'
    )
    kept = _xliff(f'<trans-unit xml:space="preserve"><source>{source}</source></trans-unit>')
    assert _filled(tmp_path, "a.xlf", kept)[0] == [source.strip() if "\n" in source else expected]


@pytest.mark.parametrize(
    "translation", ["a <b>b</b>", "a </b>b<b>", "a b", "a <b>b</b></b>", "<i/><b></b>", ""]
)
def test_a_unit_whose_tags_are_lost_stays_as_it_was(tmp_path, translation):
    content = _xliff("<trans-unit><source>a <b>b</b> <i/>c</source></trans-unit>")
    _, text = _filled(tmp_path, "a.xlf", content, lambda _: translation)
    expected = content
    if translation == "<i/><b></b>":  # only the order is new
        target = '<target state="needs-review-translation"><i/><b></b></target>'
        expected = content.replace("</source>", "</source>" + target)
    assert text == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "iso-8859-1"])
def test_xml_keeps_its_encoding(tmp_path, encoding):
    name = encoding.removesuffix("-sig")
    content = f'<?xml version="1.0" encoding="{name}"?>\r\n' + _xliff(
        "<trans-unit>\r\n<source>ü</source></trans-unit>"
    )
    (tmp_path / "a.xlf").write_bytes(content.encode(encoding))
    document = open_document(tmp_path / "a.xlf")
    assert document.filled([""]) == content.encode(encoding)
    written = document.filled(["ж"]).decode(encoding)
    expected = "&#1078;" if encoding == "iso-8859-1" else "ж"
    assert f'\r\n<target state="needs-review-translation">{expected}</target>' in written


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.po", 'msgid "a"\nmsgstr "b"x\n', "a.po, line 2: did not expect 'msgstr"),
        ("a.po", 'msgid "a"\n\nmsgid "b"\nmsgstr ""', "a.po, line 1: an entry has no msgid"),
        ("a.po", 'msgstr "b"\n', "a.po, line 1: did not expect msgstr"),
        ("a.po", b'msgid "a"\nmsgstr "\xff"\n', "a.po, line 2: is not text in utf-8"),
        ("a.po", b'"Content-Type: text/plain; charset=klingon\\n"', "not text in klingon"),
        ("a.po", b'"Content-Type: charset=ISO-2022-JP"\x1b(B\x1b(B', "not text in ISO-2022-JP"),
        ("a.po", 'msgid "a\0"', "line 1: is not text"),
        ("a.xlf", "<xliff>\n<a>", "a.xlf, line 2: is not XML"),
        ("a.xlf", "<tmx/>", "line 1: has <tmx> where <xliff> must be"),
        ("a.xlf", '<!DOCTYPE a [\n<!ENTITY a "b">]><xliff/>', "line 2: declares an entity"),
        ("a.xlf", '<!DOCTYPE a [<!ENTITY % a SYSTEM "b">%a;]><xliff/>', "declares an entity"),
        ("a.xlf", _xliff("<segment><source>a</source></segment>", "2.0"), "has no trgLang"),
        ("a.tmx", "<tmx/>", "has pairs for training"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\na\n\nb\n", "line 5: did not expect 'b'"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert message in refusal(open_document, tmp_path / name, kind=DataError)


def test_other_and_missing_files(tmp_path):
    assert open_document(tmp_path / "a.txt") is None
    with pytest.raises(DataError, match=r"b\.po: no such file"):
        open_document(tmp_path / "b.po")


def test_an_external_dtd_is_not_read(tmp_path):
    doctype = f'<!DOCTYPE tmx SYSTEM "{tmp_path}/none.dtd">\n'
    tuv = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    units = tuv.format("de", "Hallo <bpt i='1'>&lt;b></bpt>du") + tuv.format("EN", "Hello\n  you")
    tmx = f'<tmx><header srclang="en"/><body><tu>{units}</tu></body></tmx>'
    (tmp_path / "a.tmx").write_text(doctype + tmx)
    assert list(read_pairs(tmp_path / "a.tmx")) == [("Hello you", "Hallo du")]


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ("en-US a, de-DE b, en-GB c", ("a", "b")),
        ("de-DE b, en-GB c", ("c", "b")),
        ("en c, en-US a, fr d, de b", ("a", "d")),
        ("en-GB c, en-US a", ("a", "c")),
    ],
)
def test_the_pair_of_a_tmx_entry_has_two_languages(tmp_path, units, expected):
    variants = "".join(
        "<tuv xml:lang='{}'><seg>{}</seg></tuv>".format(*unit.split()) for unit in units.split(",")
    )
    tmx = f'<tmx><header srclang="en-US"/><body><tu>{variants}</tu></body></tmx>'
    (tmp_path / "a.tmx").write_text(tmx)
    assert list(read_pairs(tmp_path / "a.tmx")) == [expected]


def test_html(tmp_path):
    page = (
        "<!DOCTYPE html>\n<title>{}</title><script>if (a<b) 'x'</script><!-- <p>no</p> -->\n"
        "<p class=x>  <a href='y'>{}</a>&nbsp;\n<p>{} <code>x < y</code> {} <br> <b>{}</b> {}\n"
        '<img alt="{}" title={}><div translate=no>no <div>no</div> no</div><pre>no</pre>'
        "<td>1,000</td><button aria-label='{}'>{}</button><a b='title=\"no\"'></a>{}"
    )
    old = "t &amp; u", "link", "one\n two", "three", "four", "five", "pic", "tip", "l", "b", "end"
    new = "T &amp; U", "LINK", "ONE TWO", "THREE", "FOUR", "FIVE", "PIC", '"TIP"', "L", "B", "END"

    def translate(source):
        parts = re.split(r"(<code>.*</code>|<[^>]*>)", source)
        return "".join(p if i % 2 else p.upper() for i, p in enumerate(parts))

    sources, text = _filled(tmp_path, "a.html", page.format(*old), translate)
    assert text == page.format(*new)
    assert "one two [<code>x < y</code>] three <br> <b>four</b> five" in sources


def test_html_attributes_inside_a_unit(tmp_path):
    content = "<p>See <img alt='a \"b\"'> and <img alt='c'>."
    document = (tmp_path / "a.html").write_text(content) and open_document(tmp_path / "a.html")
    assert document.to_translate == ['a "b"', "c", content[3:]]
    swapped = document.filled(["<A>'", "C", "Und <img alt='c'> <img alt='a \"b\"'>."]).decode()
    assert swapped == "<p>Und <img alt='C'> <img alt='&lt;A&gt;&#x27;'>."
    content = "<p><i><img alt='a'></i> <b>b</b> c"
    assert _filled(tmp_path, "a.html", content, lambda s: s)[1] == content


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p><b>a</b> b<p><i>c</i>", ["<b>a</b> b", "c"]),
        ("<script>'<script>'</script>a", ["a"]),
        ("<br translate=no title=no>a<br>b", ["a<br>b"]),
        ("<svg><title>no</title></svg>a<style>no</style>", ["a"]),
        ("<p>a</p><svg><g><svg/></g></svg><p>b</p>", ["a", "b"]),
        ("<ul><li translate=no>no <b>no</b><li>a</ul><p>b</p>", ["a", "b"]),
        ("<p translate='no'>no<p>a</p>", ["a"]),
        ("<p>a <code>no<p>b</p><script>no<p>no</p>", ["a", "b"]),
        ("<textarea title=a>no</textarea><p><svg aria-label=b>no</svg> c", ["a", "b", "c"]),
        (
            "<p>a <var>x</var> <i hidden>b</i> <i data-x>c</i>",
            ["a [<var>x</var>] <i hidden>b</i> [<i data-x>]c</i>"],
        ),
    ],
)
def test_units_of_html(tmp_path, page, expected):
    assert _filled(tmp_path, "a.html", page)[0] == expected


def test_po_flags_that_are_there_and_blank_texts(tmp_path):
    content = '#, fuzzy\nmsgid "a"\nmsgstr ""\n\nmsgid " "\nmsgid_plural " b"\nmsgstr[0] ""\n'
    text = _filled(tmp_path, "a.po", content)[1]
    assert text.startswith('#, fuzzy\nmsgid "a"\nmsgstr "A"\n\n#, fuzzy\nmsgid " "')
    assert text.endswith('msgstr[0] ""\nmsgstr[1] " B"\n')


def test_xliff_text_with_crlf(tmp_path):
    content = _xliff("<trans-unit xml:space='preserve'>\r\n<source>a\r\nb</source></trans-unit>")
    sources, text = _filled(tmp_path, "a.xlf", content)
    assert sources == ["a\nb"]
    assert 'translation">A\r\nB</target>' in text
    content = _xliff("<trans-unit><source><![CDATA[a\n b]]> c</source></trans-unit>")
    assert _filled(tmp_path, "a.xlf", content)[0] == ["a b c"]


def test_subtitles_are_not_divided_in_a_tag(tmp_path):
    cue = '1\n00:00:01,000 --> 00:00:02,000\na b c{}<font  color="x">d</font>\n'
    assert _filled(tmp_path, "a.srt", cue.format("\n"), str)[1] == cue.format("\n")
    lost = _filled(tmp_path, "a.srt", cue.format("\n"), lambda _: "a b c")[1]
    assert lost == cue.format("\n")


def test_subtitles(tmp_path):
    time = "00:00:01,000 --> 00:00:02,000"
    content = f"\ufeff1\r\n{time}\r\n{{\\an8}}<i>one two\r\nthree</i>\r\n\r\n2\r\n{time}\r\n\r\n"
    content += f"3\r\n{time}\r\n- a\r\n- <b>b</b> c\r\n4\r\n{time}\r\n1984\r\n"
    content += f"\r\n5\r\n{time}\r\n<i>- d</i>\r\n<i>- e</i>\r\n\r\n6\r\n{time}\r\n-4 f\r\n"
    sources, text = _filled(tmp_path, "a.srt", content, lambda s: s.replace("one", "eins und"))
    assert sources == ["one two three", "a", "<b>b</b> c", "- d", "- e", "-4 f"]
    assert text == content.replace("one two\r\nthree", "eins und\r\ntwo three")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [("<a> <b/> <br> </a>", True), ("<a> <b> </a> </b>", False), ("<ph>x</ph> </b>", False)],
)
def test_is_balanced(tags, expected):
    assert is_balanced(tags.split()) == expected


TEXT = st.text(st.sampled_from("aé𝄞 \n&<>\"'\\;%"), max_size=8)
PIECES = st.lists(TEXT | st.sampled_from(["<b>", "</b>", "<br>", "<img alt='x'>"]), max_size=8)
UNIT = "<trans-unit><source>{}<x/>a</source></trans-unit>\n"
FORMATS = {
    "a.po": lambda pieces: "".join(
        f'# {i}\nmsgid "{re.sub(chr(10), " ", re.escape(p)).replace(chr(34), "")}x"\nmsgstr ""\n'
        for i, p in enumerate(pieces)
    ).replace("\\ ", " "),
    "a.html": "".join,
    "a.srt": lambda pieces: "".join(
        "1\n00:00:01,000 --> 00:00:02,000\n" + re.sub(r"\n\s*", "\nx", p.strip()) + "\n\n"
        for p in pieces
    ),
    "a.xlf": lambda pieces: _xliff(
        "".join(UNIT.format(p.replace("&", "&amp;").replace("<", "&lt;")) for p in pieces)
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@hypothesis.given(PIECES, TEXT)
@hypothesis.settings(
    max_examples=150, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_all_outside_of_the_units_stays_equal(tmp_path, name, pieces, translation):
    path = tmp_path / name
    content = FORMATS[name](pieces)
    path.write_text(content, newline="")
    document = open_document(path)
    count = len(document.to_translate)
    assert document.filled([""] * count) == content.encode()
    filled = document.filled(
        [_without_signs(source) + translation for source in document.to_translate]
    ).decode()
    # What is left of the units, in order, is in the result, in order.
    position = start = 0
    for edit in sorted({e.start: e for u in document.units for e in u.edits}.values()):
        if edit.start >= start:
            position = filled.index(content[start : edit.start], position)
            position += edit.start - start
            start = edit.end
    assert filled.endswith(content[start:])
    path.write_text(filled, newline="")
    again = open_document(path)  # is still well-formed
    if name in ("a.po", "a.xlf"):
        assert again.to_translate == []
        assert [u.source for u in again.units] == [u.source for u in document.units]
