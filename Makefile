# From a fresh clone: `make demo` runs the pipeline on the embedded default, `make test` the tests. Both make .venv first.
SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := workflow/scripts/snaketrain/extras
# The tests of a file stay together, since they share what is trained once. Files in the order of conftest.py: pytest-xdist would begin with
# those of most tests, and some of the longest are a single one.
BY_FILE := --dist loadfile --no-loadscope-reorder
IN_TWO := -n 2 $(BY_FILE)
ONLY = -m 'not slow'
export MLFLOW_DISABLE_TELEMETRY = true
export CONFIG ?= config/config.yaml

.PHONY: help demo run plan compiled test test-fast test-core test-all test-slurm test-gpu mutations check ui bench bench-guard docs

help:
	@echo "make demo              run the embedded default: offline, about two minutes on two idle cores"
	@echo "make run CONFIG=FILE   check a configuration of yours and run it on this machine"
	@echo "make plan CONFIG=FILE  what each run will need: memory, bytes exchanged, checkpoints, time"
	@echo "make ui                open the MLflow UI on the results in this folder"
	@echo "make test              unit tests, real trainings, torchrun and whole workflows, without those marked slow"
	@echo "make test-fast         the unit tests, but for the lengthy ones"
	@echo "make test-core         the fast unit tests, of the core alone: the last commit, copied without extras"
	@echo "make test-slurm        trainings and faults on a SLURM cluster that the tests start (root), without those marked slow"
	@echo "make test-all          all of both, with those marked slow: many random trainings, lost nodes, MLflow in a browser; before a release"
	@echo "make test-gpu          strategies, precisions and trainings on a GPU of this machine"
	@echo "make mutations         whether the tests detect bugs that are put into the code"
	@echo "make check             the linters and the type checker"
	@echo "make bench             measure the workflow's own overhead; the other benchmarks: benchmarks/"
	@echo "make bench-guard       whether steps, batches or starts became slower: run it before and after changing them"
	@echo "make docs              write the generated documents, and build the site in site/"

.venv/installed: requirements.lock requirements-no-deps.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "Making .venv failed. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(BIN)/pip install --progress-bar off -r requirements.lock
	$(BIN)/pip install --progress-bar off --no-deps -r requirements-no-deps.lock
	$(BIN)/pip install --progress-bar off --no-deps --editable .
	touch $@

# Without dependencies: the lock has all of them, but for a browser's driver, of whose package only a file is needed.
.venv/installed-dev: .venv/installed requirements-dev.lock
	$(BIN)/pip install --progress-bar off --no-deps -r requirements-dev.lock
	touch $@

demo: .venv/installed
	@test "$$CONFIG" = config/config.yaml || { echo "make demo runs config/config.yaml. For another configuration: make run CONFIG=$$CONFIG"; exit 1; }
	$(BIN)/snakemake --profile profiles/local
	@test report.html -nt results/comparison/manifest.json || \
		$(BIN)/snakemake --profile profiles/local --report report.html > logs/report.log 2>&1 || { cat logs/report.log; exit 1; }
	@echo
	@echo "Report:         $(CURDIR)/report.html"
	@echo "MLflow UI:      make ui"
	@echo "Your own data:  make run CONFIG=my.yaml    (README.md, \"Your own data\", has a my.yaml to begin with)"

run: .venv/installed
	@$(BIN)/snaketrain run "$$CONFIG"

plan: .venv/installed
	@$(BIN)/snaketrain plan "$$CONFIG"

ui: .venv/installed
	@$(BIN)/snaketrain ui

# For tests, whose thousands of processes would each compile the package where PYTHONDONTWRITEBYTECODE is set
compiled: .venv/installed-dev
	@$(BIN)/python -m compileall -q workflow/scripts

# Run the next suite even if one fails, so that all failures are seen at once. Unit tests are apart, since the planner's make a fake
# process group, and modules of torch that are imported meanwhile keep it.
test: compiled
	@failed=0; \
	$(BIN)/python -m pytest $(IN_TWO) $(ONLY) tests/unit $(EXTRAS) --durations=15 || failed=1; \
	$(BIN)/python -m pytest $(IN_TWO) $(ONLY) tests/slow tests/distributed tests/pipeline --durations=15 || failed=1; \
	exit $$failed

# On four clusters, each with namespaces of its own, which together keep two cores busy.
test-slurm: compiled
	$(BIN)/python -m pytest $(BY_FILE) --tx "4*popen//python=tests/slurm/own_namespaces.sh $(BIN)/python" $(ONLY) tests/slurm --durations=15

test-all:
	@failed=0; for suite in test test-slurm; do $(MAKE) $$suite ONLY= || failed=1; done; exit $$failed

test-fast: .venv/installed-dev
	$(BIN)/python -m pytest $(IN_TWO) -m 'not slow and not lengthy' tests/unit $(EXTRAS)

# The last commit, copied without extras. The tests of documents and of mutations are about the whole repository.
test-core: .venv/installed-dev
	@copy=$$(mktemp -d) && git archive HEAD | tar -x -C $$copy && rm -r $$copy/$(EXTRAS)/*/ && cd $$copy && \
	$(CURDIR)/$(BIN)/python -m pytest $(IN_TWO) -m 'not slow and not lengthy' tests/unit --ignore tests/unit/test_docs.py --ignore tests/unit/test_mutations.py; \
	code=$$?; rm -rf $$copy; exit $$code

test-gpu: compiled
	$(BIN)/python -m pytest $(IN_TWO) tests/gpu --durations=15

mutations: .venv/installed-dev
	$(BIN)/python tests/mutations.py

# All of them, even if one finds something
check: .venv/installed-dev
	@failed=0; \
	for tool in "ruff check ." "ruff format --check ." mypy "snakefmt --check Snakefile workflow/Snakefile workflow/rules $(EXTRAS)" \
		"python tests/lint_workflow.py" "python tests/measure_structure.py"; do \
		echo "$$tool"; $(BIN)/$$tool || failed=1; \
	done; \
	exit $$failed

bench: .venv/installed
	$(BIN)/python benchmarks/overhead.py

bench-guard: .venv/installed
	@$(BIN)/python benchmarks/guard.py

docs: .venv/installed-dev
	$(BIN)/python docs/write_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site: $(CURDIR)/site/index.html"
