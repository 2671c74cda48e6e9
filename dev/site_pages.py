"""Make the pages of the site that are not in docs/: the front page, the reference, linked files.

MkDocs calls the functions `on_…` (`hooks` in mkdocs.yml). In the repository, pages link to files
such as `../dev/LOG.md` or `../tests/test_keras_features.py`; the site has a page for each of these
files. The reference of public names is read from the sources, without importing the package.
"""

import ast
import base64
import html
import html.parser
import itertools
import json
import pathlib
import posixpath
import re

import ziamath
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "tf_transformer"
SUBPACKAGES = (
    "data", "decoding", "evaluation", "export", "inference", "layers", "models", "run_config",
    "runs", "serving", "tokenizers", "training", "visualization",
)  # fmt: skip
# The first two alternatives match code, whose brackets are not links; the last, links and images.
_LINK = re.compile(r"```.*?```|`[^`\n]+`|(!?\[[^\]]*\]\()([^)#\s]+)((?:#[^)\s]*)?\))", re.DOTALL)
# Displayed and inline formulas of notebooks.
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".c": "c", ".yml": "yaml", ".html": "html"}
_log = get_plugin_logger(__name__)


def on_files(files, config):
    """Add the pages that are not in docs/."""
    for path, text in _reference().items():
        files.append(File.generated(config, path, content=text))
    waiting, added = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"], set()
    waiting += [f"docs/{file.src_uri}" for file in files.documentation_pages() if _is_own(file)]
    while waiting:
        path = waiting.pop()
        if path in added:
            continue
        added.add(path)
        if path.endswith(".ipynb"):
            page, pictures = _notebook(path)
            files.append(File.generated(config, _site_path(path), content=page))
            folder = posixpath.dirname(_site_path(path))
            for name, picture in pictures.items():
                files.append(File.generated(config, f"{folder}/{name}", content=picture))
        elif not path.startswith("docs/"):
            files.append(File.generated(config, _site_path(path), content=_page_of(path)))
        if path.endswith(".md"):
            links = _LINK.finditer((ROOT / path).read_text(encoding="utf-8"))
            targets = (_repository_path(path, link[2]) for link in links if link[2])
            waiting += [to for to in targets if to and not to.startswith("docs/")]
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links between files of the repository into links between pages of the site."""
    here = _repository_file(page.file)
    if here is None:
        return markdown

    def rewritten(match):
        target = match[2] and _repository_path(here, match[2])
        if not target:
            return match[0]
        folder = posixpath.dirname(page.file.src_uri) or "."
        return match[1] + posixpath.relpath(_site_path(target), folder) + match[3]

    return _LINK.sub(rewritten, markdown)


def on_post_build(config):
    """Warn if a browser would load something from another site; `--strict` makes this an error."""
    for path in sorted(pathlib.Path(config.site_dir).rglob("*")):
        if path.suffix == ".html":
            parser = _Resources()
            parser.feed(path.read_text(encoding="utf-8"))
            found = parser.foreign
        elif path.suffix == ".css":
            found = re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*", path.read_text("utf-8"))
        else:
            continue
        for resource in found:
            _log.warning("%s loads %s", path, resource)


class _Resources(html.parser.HTMLParser):
    """A parser that collects the addresses of other sites from which a page loads resources."""

    def __init__(self):
        super().__init__()
        self.foreign = []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        names = ("src", "srcset", "data", "poster", *(["href"] if tag == "link" else []))
        if tag == "link" and attrs.get("rel") in ("canonical", "next", "prev"):
            return
        for name in names:
            if re.match(r"(https?:)?//", attrs.get(name) or ""):
                self.foreign.append(attrs[name])


def _is_own(file):
    """Return whether a file of the site is in docs/."""
    return file.abs_src_path is not None


def _repository_file(file):
    """Return the file of the repository from which a page of the site is made, or None."""
    if _is_own(file):
        return f"docs/{file.src_uri}"
    if file.src_uri == "index.md":
        return "README.md"
    folder, _, path = file.src_uri.partition("/")
    return path if folder == "repository" else None


def _repository_path(here, target):
    """Return the file to which a link in the file `here` leads; None if there is none."""
    if ":" in target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def _site_path(path):
    """Return the path in the site of a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _page_of(path):
    """Return a file of the repository as Markdown."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n{_fence(text, _LANGUAGES.get(pathlib.Path(path).suffix, 'text'))}\n"


def _notebook(path):
    """Return a notebook as Markdown, with outputs after each cell, and its pictures by name."""
    stem, parts, pictures = pathlib.PurePath(path).stem, [], {}
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Formulas become images, because few systems have a font for MathML.
            parts.append(_FORMULA.sub(_formula, source))
            continue
        parts.append(_fence(source, "python"))
        for is_picture, outputs in itertools.groupby(cell["outputs"], _has_picture):
            if not is_picture:
                texts = (o.get("text") or o["data"].get("text/plain", ()) for o in outputs)
                parts.append(_fence("".join(map("".join, texts)).rstrip(), "text"))
                continue
            for output in outputs:
                name = f"{stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
    return "\n\n".join(parts), pictures


def _has_picture(output):
    return "image/png" in output.get("data", {})


def _formula(match):
    """Return a formula as an image, inside the line of text unless it is displayed."""
    displayed, inline = match.groups()
    latex = " ".join((displayed or inline).split())
    drawn = ziamath.Latex(latex, size=16, inline=inline is not None)
    data = base64.b64encode(drawn.svg().encode()).decode()
    style = "display: block; margin: auto" if displayed else f"vertical-align: {drawn.getyofst()}px"
    return (
        f'<img class="formula" alt="{html.escape(latex)}" style="{style}"'
        f' src="data:image/svg+xml;base64,{data}">'
    )


def _fence(text, language):
    return f"````{language}\n{text}\n````"


def _reference():
    """Return the pages of the reference by their paths."""
    pages = {name: _public_names(f"{PACKAGE}.{name}") for name in SUBPACKAGES}
    modules = {object_: page for page, names in pages.items() for object_ in names.items()}
    rows = []
    for name, module in sorted(_public_names(PACKAGE).items(), key=lambda row: row[0].lower()):
        # Only the package itself exports some names, such as `phrasebook` of `data`.
        page = modules.setdefault((name, module), module.split(".")[1])
        pages[page][name] = module
        rows.append(f"| [`{name}`][{module}.{name}] | `{module}` |")
    index = [
        "# Public names",
        f"{_docstring(PACKAGE)}",
        "`import tf_transformer as tt` has these, as `tt.Translator`:",
        "| name | defined in |\n|---|---|\n" + "\n".join(rows),
    ]
    texts = {"reference/index.md": "\n\n".join(index) + "\n"}
    for page, names in pages.items():
        bases = _base_classes(names, f"{PACKAGE}.{page}")
        objects = [f"::: {module}.{name}" for name, module in sorted(names.items())]
        objects += [f"::: {module}.{name}" for name, module in sorted(bases.items())]
        parts = [f"# {PACKAGE}.{page}", _docstring(f"{PACKAGE}.{page}"), *objects]
        texts[f"reference/{page}.md"] = "\n\n".join(parts) + "\n"
    return texts


def _source(module):
    """Return the syntax tree of a module or package."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _docstring(module):
    return ast.get_docstring(_source(module)) or ""


def _public_names(module):
    """Return the public classes and functions of a package or module with their modules."""
    tree, names = _source(module), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "submod_attrs":
            for part, defined in ast.literal_eval(node.value).items():
                names |= dict.fromkeys(defined, f"{module}.{part}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{module}."):
            names |= {alias.name: node.module for alias in node.names}
    if not names:  # it is a module
        return {
            node.name: module
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        }
    for name, where in names.items():  # a package may import a name from its own module
        if ROOT.joinpath(*where.split(".")).is_dir():
            names[name] = _public_names(where)[name]
    return {name: where for name, where in names.items() if not name.isupper()}


def _base_classes(names, package):
    """Return the base classes that are not public; docstrings of a subpackage refer to them."""
    found, waiting = {}, list(names.items())
    while waiting:
        name, module = waiting.pop()
        defined, bases = {}, []
        for node in _source(module).body:
            if isinstance(node, ast.ClassDef):
                defined[node.name] = module
                bases += map(ast.unparse, node.bases if node.name == name else [])
            elif isinstance(node, ast.ImportFrom):
                defined |= {alias.name: node.module for alias in node.names}
        for base in bases:
            of_package = defined.get(base, "").startswith(f"{package}.")
            if of_package and base not in {**names, **found} and not base.startswith("_"):
                found[base] = defined[base]
                waiting.append((base, defined[base]))
    return found
