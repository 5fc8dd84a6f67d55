# Every target works on a fresh clone; it sets up the environment first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.installed-$(shell cat pyproject.toml requirements/uv.txt requirements/dev.txt | sha256sum | cut -c1-16)
CHECKOV := .cache/checkov/.installed-$(shell sha256sum < requirements/checkov.txt | cut -c1-16)
SBOM := .cache/sbom/.installed-$(shell sha256sum < requirements/sbom.txt | cut -c1-16)
AGENTS := .cache/agents/.installed-$(shell sha256sum < requirements/agents.txt | cut -c1-16)
BUNDLE := .gpu/.built-$(shell cat requirements/gpu-bundle.txt tests/gpu/bundle/*.py trainer_image/raggrpo_quickstart/*.py | sha256sum | cut -c1-16)
MACHINE := .cache/gpu-machine/.installed-$(shell sha256sum < requirements/gpu-machine.txt | cut -c1-16)
DIR ?= raggrpo-jobs/quickstart
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
DEVICE ?= cuda
BASE_IMAGE ?= python:3.11-slim-bookworm
IMAGE_ARGS = --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse --short=12 HEAD 2>/dev/null)

.PHONY: help setup quickstart demo test coverage chart-test checkov api-test programs kind-up kind-down e2e e2e-full drills-cluster gpu gpu-bundle bundle-test gpu-job models fuzz fuzz-answers fuzz-specs mutants test-fast verify fmt lint types generate picture golden drill bench lock wheel sbom images clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## create the environment in .venv from the hashed lock

$(SETUP): pyproject.toml requirements/uv.txt requirements/dev.txt
	@$(PYTHON) scripts/check_machine.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-* && touch $(SETUP)

quickstart: setup ## train a small retrieval job on this machine
	$(BIN)/python -m raggrpo_quickstart --dir $(DIR)/input
	$(BIN)/raggrpo run crds/samples/quickstart.yaml --dir $(DIR) --mount quickstart=$(DIR)

demo: setup ## create a kind cluster, install the operator and run a small CPU job
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/demo.py

test: setup $(AGENTS) ## run all tests that need neither a GPU nor a cluster
	# Two workers with one thread each, the longest files first.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/local/runs/test_job_lifecycle.py tests/local/runs/test_restart.py \
	  tests/local tests/unit tests/golden tests/scenario -m "not long" -n 2 --dist loadfile --no-loadscope-reorder -q --durations=15 $(COVERAGE)

# Slows the tests down by a third.
coverage: COVERAGE = --cov --cov-report=term:skip-covered --cov-report=xml:.cache/coverage.xml
coverage: test ## run these tests and report the lines of code that they execute

chart-test: setup ## test the Helm chart (needs Go to build Helm)
	$(BIN)/python tests/tools/kind/go_programs.py helm crd-check prometheus prometheus-config
	$(BIN)/python -m pytest tests/chart --durations=10

checkov: setup $(CHECKOV) ## run static security checks on the rendered chart and a job's objects
	$(BIN)/python tests/tools/kind/go_programs.py helm
	PYTHONPATH=tests $(BIN)/python tests/chart/static_security.py .cache/checkov/bin/checkov

$(CHECKOV): requirements/checkov.txt | $(SETUP)
$(SBOM): requirements/sbom.txt | $(SETUP)
$(AGENTS): requirements/agents.txt | $(SETUP)
$(CHECKOV) $(SBOM) $(AGENTS):
	rm -rf $(@D)
	$(BIN)/uv venv --quiet --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --python $(@D)/bin/python --quiet --no-deps --require-hashes -r $<
	touch $@

api-test: setup ## test against a real API server without nodes (needs Go)
	$(BIN)/python tests/tools/kind/go_programs.py kube etcd kuberay-config helm
	$(BIN)/python -m pytest tests/api --durations=10

programs: ## build the programs of the test clusters into the cache (needs Go)
	$(PYTHON) tests/tools/kind/go_programs.py kube etcd coredns pause crictl kind helm crd-check registry kuberay kuberay-config prometheus prometheus-config

kind-up: setup ## create a kind cluster with KubeRay; starts Docker if needed
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/kind_cluster.py up

kind-down: setup ## delete that cluster; keep its caches
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/kind_cluster.py down

# One test at a time: with two jobs the node has no room for a restarted operator.
e2e: SELECTED = tests/e2e -m "not long"
e2e: kind-up ## test on that cluster, with KubeRay and the real trainer
e2e-full: SELECTED = tests/e2e --ignore tests/e2e/drills --results-table docs/internals/cluster-tests.md
e2e-full: kind-up ## run also the long tests; write docs/internals/cluster-tests.md
drills-cluster: export KIND_CLUSTER = raggrpo-two
drills-cluster: export KIND_NODES = 2
drills-cluster: SELECTED = tests/e2e/drills -n 3 --drills-table docs/internals/cluster-drills.md
drills-cluster: kind-up ## inject every kind of loss on a cluster of two nodes; write docs/internals/cluster-drills.md (long)
e2e e2e-full drills-cluster:
	$(BIN)/python tests/tools/kind/go_programs.py helm
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/images.py
	$(BIN)/python -m pytest $(SELECTED) --durations=10

fuzz: setup ## run 200,000 random rounds of a job with failures at every point (long)
	RAGGRPO_FUZZ_STEPS=200000 $(BIN)/python -m pytest tests/scenario/adversarial/test_state_machine.py -q --timeout 0

fuzz-answers: setup ## parse 3,000 adversarial responses of each kind that pods can give (long)
	RAGGRPO_FUZZ_ANSWERS=3000 $(BIN)/python -m pytest tests/unit/operator/test_fuzz_answers.py -q --timeout 0

fuzz-specs: setup ## parse, resolve and render 3,000 adversarial specs (long)
	RAGGRPO_FUZZ_SPECS=3000 $(BIN)/python -m pytest tests/scenario/adversarial/test_adversarial_specs.py -q -s --timeout 0

mutants: setup ## measure the mutation score; SEED, COUNT, MUTATED=core, WITHIN=rules (long)
	nice -n 15 $(BIN)/python scripts/mutants.py --seed $(or $(SEED),1) --count $(or $(COUNT),100) --within "$(WITHIN)" $(MUTATED)

test-fast: setup ## run the tests without Ray, vLLM and training
	$(BIN)/python -m pytest tests/unit tests/golden tests/scenario -m "not long" -q

verify: setup ## check format, lint, types, layers, words and generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py
	$(BIN)/python -m raggrpo_operator.crd --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/draw_packages.py --check
	$(BIN)/python scripts/feature_rows.py --check

fmt: setup ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup ## write the CRD, its copy in the chart and docs/reference from the code
	$(BIN)/python -m raggrpo_operator.crd
	$(BIN)/python scripts/write_reference.py

picture: setup ## draw the import graph into docs/internals/packages.md
	$(BIN)/python scripts/draw_packages.py

golden: setup ## rewrite the golden files; review the diff
	$(BIN)/python -m pytest tests/unit/operator/text/test_plan.py tests/unit/operator/manifests/test_manifests.py -q --update-golden

drill: setup $(AGENTS) ## kill every process at every stage; write docs/internals/drills.md (long)
	PYTHONPATH=tests $(BIN)/python tests/local/drills/drill.py --table docs/internals/drills.md
	$(BIN)/python -m pytest tests/local -m long

gpu: ## test and measure the policy step on one GPU (needs torch, transformers, pydantic, pytest)
	PYTHONPATH=operator:trainer_image:tests $(or $(PYTHON),python3) -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . tests/gpu
	PYTHONPATH=operator:trainer_image:tests $(or $(PYTHON),python3) tests/gpu/policy_step.py

gpu-bundle: $(BUNDLE) ## build .gpu/: vLLM, Ray and TRL for a machine with a GPU and no package index

# The name contains a digest of all that the bundle depends on.
$(BUNDLE): | $(SETUP)
	rm -f .gpu/*.tar.xz .gpu/.built-*
	PYTHONPATH=tests:trainer_image $(BIN)/python -m gpu.bundle.build --uv $(BIN)/uv --out .gpu
	touch $@

bundle-test: $(BUNDLE) $(MACHINE) ## train the quickstart from .gpu/ on a CPU (needs Python 3.12; long)
	GPU_BUNDLE_PYTHON=$(dir $(MACHINE))bin/python $(BIN)/python -m pytest tests/local/runs/test_gpu_bundle.py -q

$(MACHINE): | $(SETUP)
	rm -rf $(@D)
	# pyenv's `python3.12` fails unless a version is selected.
	PYENV_VERSION=3.12 $(BIN)/uv venv --quiet --no-python-downloads --python 3.12 $(@D)
	$(BIN)/uv pip install --python $(@D)/bin/python --quiet --no-deps --require-hashes -r requirements/gpu-machine.txt
	touch $@

gpu-job: ## run the main job on one GPU, with .gpu/ if it exists (34 minutes; 15 with STEPS=abcf, d or eg)
	if compgen -G ".gpu/*.tar.xz" > /dev/null; then . tests/gpu/bundle/unpack.sh; else \
	    export PYTHONPATH=operator:trainer_image:tests QUICKSTART_INPUT=$(CURDIR)/.cache/gpu-quickstart; \
	    python3 -m raggrpo_quickstart --dir "$$QUICKSTART_INPUT"; fi; \
	  python3 -m gpu.job --out $(or $(OUT),gpu-results) --steps $(or $(STEPS),abcdefg)

models: setup ## check every causal model family; write docs/reference/models.md (minutes)
	PYTHONPATH=tests $(BIN)/python -m support.engines.model_families --table docs/reference/models.md
	$(BIN)/python -m pytest tests/unit/trainer/policy/test_layout_check.py tests/local/engines/test_model_families.py -m long -q

bench: setup ## measure throughput against TRL, and monitoring overhead
	PYTHONPATH=tests $(BIN)/python tests/bench/training/train_throughput.py
	PYTHONPATH=tests $(BIN)/python tests/bench/training/monitoring_overhead.py

lock: setup ## update the lock files in requirements/ from pyproject.toml
	scripts/lock.sh $(BIN)/uv

wheel: setup ## build the wheel of both images in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -t wheel -d dist

sbom: setup $(SBOM) ## write CycloneDX bills of materials of both images to dist/
	mkdir -p dist
	for of in operator=operator trainer=trainer-$(DEVICE); do \
	  .cache/sbom/bin/cyclonedx-py requirements requirements/$${of#*=}.txt --pyproject pyproject.toml \
	    --output-reproducible --validate -o dist/sbom-$${of%=*}.cdx.json; done

images: wheel ## build the Docker images; DEVICE=cpu for machines without GPUs
	docker build $(IMAGE_ARGS) -t raggrpo/operator:$(VERSION) .
	docker build $(IMAGE_ARGS) --build-arg DEVICE=$(DEVICE) -f trainer_image/Dockerfile -t raggrpo/trainer:$(VERSION) .

clean: ## remove the environment and caches
	rm -rf .venv .cache/agents .cache/checkov .cache/gpu-machine .cache/sbom .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
