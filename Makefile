# make demo   environment, training on the built-in corpus, SavedModel, translations
# make serve  a page and a REST API on http://127.0.0.1:8501/ for what make demo wrote
# make test   environment, tests (but those marked slow)
# make test-slow   environment, the tests marked slow
# make notebooks   all notebooks in quick mode; make notebook-outputs writes their outputs
# make interop   models of other engines beside their imports; 2 GB of peers, not a part of the tests
# make docs   the documents and the reference as a site, in site/index.html

PYTHON ?= python3
VENV := .venv
RUN := runs/demo
SAVED := saved_models/demo

.PHONY: help demo serve test test-slow lint notebooks notebook-outputs interop figures docs clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# make/make/p' Makefile

# venv makes pip last: where it is, the environment is complete, which python alone would not say.
$(VENV)/bin/pip:
	@echo "== making the environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed; name it: make demo PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/pip pyproject.toml requirements.txt
	@echo "== installing the package and TensorFlow (some minutes)"
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# For the tests (dev) and the server (serve).
$(VENV)/.installed-%: $(VENV)/.installed requirements-%.txt
	@echo "== installing the packages of requirements-$*.txt"
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable .[$*]
	@touch $@

demo: $(VENV)/.installed
	@echo "== 1/4 training German to English on the built-in phrasebook"
	@if [ -f $(RUN)/config.toml ]; then \
	  echo "   continuing $(RUN); remove the folder to train from the start"; \
	  $(VENV)/bin/tf-transformer train --run-dir $(RUN) --resume; \
	else \
	  $(VENV)/bin/tf-transformer train --config demo.toml --run-dir $(RUN); \
	fi
	@echo "== 2/4 exporting the best checkpoint as a SavedModel"
	@$(VENV)/bin/tf-transformer export $(RUN) $(SAVED) --version 1 --overwrite
	@echo "== 3/4 scoring the SavedModel on sentences that training never saw"
	@$(VENV)/bin/tf-transformer evaluate $(SAVED) --source $(RUN)/test/source.txt --reference $(RUN)/test/target.txt
	@echo "== 4/4 translating with the SavedModel, in a new process"
	@head -n 12 $(RUN)/test/source.txt > $(RUN)/sample.txt
	@$(VENV)/bin/tf-transformer translate $(SAVED) --input $(RUN)/sample.txt --output $(RUN)/sample.out.txt --overwrite
	@paste -d '|' $(RUN)/sample.txt $(RUN)/sample.out.txt | awk -F'|' '{print $$1; print "    " $$2}'
	@echo "== your turn: echo 'Wo kann ich Brot kaufen?' | $(VENV)/bin/tf-transformer translate $(SAVED)"
	@echo "== or in a browser: make serve"

serve: $(VENV)/.installed-serve
	@$(VENV)/bin/tf-transformer serve $(SAVED)

# On all cores; a file stays in one process, since its tests share what was slow to make.
PYTEST := $(VENV)/bin/python -m pytest --quiet --numprocesses auto --dist loadfile --durations 10

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

# Slow tests wait a third of the time, for processes that start and for servers.
test-slow: $(VENV)/.installed-dev
	$(PYTEST) --numprocesses $$((3 * $$(getconf _NPROCESSORS_ONLN) / 2)) -m slow

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

notebooks: $(VENV)/.installed-dev
	$(VENV)/bin/python dev/run_notebooks.py --quick

# In full, some minutes each; NOTEBOOKS=01_train_a_translator for one.
notebook-outputs: $(VENV)/.installed-dev
	$(VENV)/bin/python dev/run_notebooks.py $(NOTEBOOKS)

# Each peer has an environment of its own, unless its interpreter is given: MARIAN_PYTHON=… make interop.
# Later releases of transformers have no converter of Marian's files. INTEROP has options of dev/interop.py.
PEER_PYTHON ?= python3.11
PEERS := .venv-peers
MARIAN_PYTHON ?= $(PEERS)/marian/bin/python
OPENNMT_PYTHON ?= $(PEERS)/opennmt/bin/python
HUGGING_FACE_PYTHON ?= $(PEERS)/hugging-face/bin/python
PACKAGES_marian := pymarian==1.12.42 numpy
PACKAGES_opennmt := tensorflow==2.13.1 OpenNMT-tf==2.32.0 "numpy<2"
PACKAGES_hugging-face := transformers==4.46.3 torch==2.13.0 sentencepiece sacremoses

$(PEERS)/%/bin/python:
	@echo "== making the environment of $* in $(PEERS)"
	@$(PEER_PYTHON) -m venv $(PEERS)/$*
	@$(PEERS)/$*/bin/pip install --quiet --disable-pip-version-check $(PACKAGES_$*) || { rm -r $(PEERS)/$*; exit 1; }

interop: $(VENV)/.installed $(MARIAN_PYTHON) $(OPENNMT_PYTHON) $(HUGGING_FACE_PYTHON)
	$(VENV)/bin/python dev/interop.py --marian-python $(MARIAN_PYTHON) \
	  --opennmt-python $(OPENNMT_PYTHON) --hugging-face-python $(HUGGING_FACE_PYTHON) $(INTEROP)

# The reference is read from the sources, so this needs no TensorFlow. Material for MkDocs is kept until
# May 2027; its notice of that is switched off.
$(VENV)/.installed-docs: $(VENV)/bin/pip requirements-docs.txt
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --requirement requirements-docs.txt
	@touch $@

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The pictures of README and docs, from what make demo wrote.
figures: $(VENV)/.installed-dev
	@test -d $(SAVED) || { echo "$(SAVED) is missing; run make demo first" >&2; exit 1; }
	$(VENV)/bin/python dev/figures.py $(RUN) $(SAVED) docs/images

clean:
	rm -rf $(VENV) $(PEERS) site .pytest_cache .ruff_cache .hypothesis *.egg-info
