# Every target works on a fresh clone: it sets up its own environment first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.installed-$(shell cat pyproject.toml requirements/uv.txt requirements/dev.txt | sha256sum | cut -c1-16)
CHECKOV := .cache/checkov/.installed-$(shell sha256sum < requirements/checkov.txt | cut -c1-16)
SBOM := .cache/sbom/.installed-$(shell sha256sum < requirements/sbom.txt | cut -c1-16)
DIR ?= raggrpo-jobs/quickstart
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
DEVICE ?= cuda
BASE_IMAGE ?= python:3.11-slim-bookworm
IMAGE_ARGS = --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse --short=12 HEAD 2>/dev/null)

.PHONY: help setup quickstart demo test chart-test checkov api-test programs kind-up kind-down e2e e2e-full drills-cluster gpu models fuzz fuzz-answers fuzz-specs mutants test-fast verify fmt lint types generate picture golden drill bench lock wheel sbom images clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## make the environment in .venv from the hashed lock

$(SETUP): pyproject.toml requirements/uv.txt requirements/dev.txt
	@$(PYTHON) scripts/check_machine.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-* && touch $(SETUP)

quickstart: setup ## train the small retrieval job for real on this machine
	$(BIN)/python -m raggrpo_quickstart --dir $(DIR)/input
	$(BIN)/raggrpo run crds/samples/quickstart.yaml --dir $(DIR) --mount quickstart=$(DIR)

demo: setup ## a cluster, the operator and a small CPU job on this machine, followed to its end
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/demo.py

test: setup ## all tests that need neither a GPU nor a cluster
	# Two runs at a time, one thread each, the longest files first: on two cores more only waits.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/local/runs/test_job_lifecycle.py tests/local/runs/test_restart.py \
	  tests/local tests/unit tests/golden tests/scenario -m "not long" -n 2 --dist loadfile --no-loadscope-reorder -q --durations=15 \
	  --cov --cov-report=term:skip-covered --cov-report=xml:.cache/coverage.xml

chart-test: setup ## tests of the Helm chart (needs Go, which builds Helm)
	$(BIN)/python tests/tools/kind/go_programs.py helm crd-check
	$(BIN)/python -m pytest tests/chart --durations=10

checkov: setup $(CHECKOV) ## static security checks of the rendered chart and of what a job makes
	$(BIN)/python tests/tools/kind/go_programs.py helm
	PYTHONPATH=tests $(BIN)/python tests/chart/static_security.py .cache/checkov/bin/checkov

$(CHECKOV): requirements/checkov.txt | $(SETUP)
$(SBOM): requirements/sbom.txt | $(SETUP)
$(CHECKOV) $(SBOM):
	rm -rf $(@D)
	$(BIN)/uv venv --quiet --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --python $(@D)/bin/python --quiet --no-deps --require-hashes -r $<
	touch $@

api-test: setup ## tests against a real API server without nodes (needs Go, no Docker)
	$(BIN)/python tests/tools/kind/go_programs.py kube etcd kuberay-config helm
	$(BIN)/python -m pytest tests/api --durations=10

programs: ## the programs that the test clusters need, built into the cache (needs Go)
	$(PYTHON) tests/tools/kind/go_programs.py kube etcd coredns pause crictl kind helm crd-check registry kuberay kuberay-config

kind-up: setup ## a kind cluster with KubeRay; starts Docker, builds what no registry gives
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/kind_cluster.py up

kind-down: setup ## delete that cluster; caches stay
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/kind_cluster.py down

# One at a time: where two jobs fill the node, an operator that is killed finds no room to come back.
e2e: SELECTED = tests/e2e -m "not long"
e2e: kind-up ## tests on that cluster, with KubeRay and the real trainer
e2e-full: SELECTED = tests/e2e --ignore tests/e2e/drills --results-table docs/internals/cluster-tests.md
e2e-full: kind-up ## the same with those that take longer; writes docs/internals/cluster-tests.md
drills-cluster: export KIND_CLUSTER = raggrpo-two
drills-cluster: export KIND_NODES = 2
drills-cluster: SELECTED = tests/e2e/drills -n 3 --drills-table docs/internals/cluster-drills.md
drills-cluster: kind-up ## every kind of loss on a cluster of two nodes; writes docs/internals/cluster-drills.md (long)
e2e e2e-full drills-cluster:
	$(BIN)/python tests/tools/kind/go_programs.py helm
	PYTHONPATH=tests $(BIN)/python tests/tools/kind/images.py
	$(BIN)/python -m pytest $(SELECTED) --durations=10

fuzz: setup ## 200,000 steps of random lives of a job, with every failure at every moment (long)
	RAGGRPO_FUZZ_STEPS=200000 $(BIN)/python -m pytest tests/scenario/adversarial/test_state_machine.py -q --timeout 0

fuzz-answers: setup ## 3,000 hostile answers of each kind that a job's pods can give (long)
	RAGGRPO_FUZZ_ANSWERS=3000 $(BIN)/python -m pytest tests/unit/operator/test_fuzz_answers.py -q --timeout 0

fuzz-specs: setup ## 3,000 hostile specs from parsing to manifests, and how long they take (long)
	RAGGRPO_FUZZ_SPECS=3000 $(BIN)/python -m pytest tests/scenario/adversarial/test_adversarial_specs.py -q -s --timeout 0

mutants: setup ## a seeded sample of mutants of core, arithmetic and checkpoints; SEED, COUNT, MUTATED=core, WITHIN=rules (long)
	nice -n 15 $(BIN)/python scripts/mutants.py --seed $(or $(SEED),1) --count $(or $(COUNT),100) --within "$(WITHIN)" $(MUTATED)

test-fast: setup ## the tests without Ray, vLLM and training
	$(BIN)/python -m pytest tests/unit tests/golden tests/scenario -m "not long" -q

verify: setup ## format, lint, types, layers, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py
	$(BIN)/python -m raggrpo_api.schema.crd --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/draw_packages.py --check

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: setup ## write the CRD, its copy in the chart and docs/reference from the code
	$(BIN)/python -m raggrpo_api.schema.crd
	$(BIN)/python scripts/write_reference.py

picture: setup ## draw the packages and their imports into docs/internals/packages.md
	$(BIN)/python scripts/draw_packages.py

golden: setup ## rewrite the golden files; read the diff
	$(BIN)/python -m pytest tests/unit/operator/text/test_plan.py tests/unit/operator/manifests/test_manifests.py -q --update-golden

drill: setup ## kill every process at every kind of moment, writes docs/internals/drills.md; hang, S3 (long)
	PYTHONPATH=tests $(BIN)/python tests/local/drills/drill.py --table docs/internals/drills.md
	$(BIN)/python -m pytest tests/local -m long

gpu: ## speed, memory and exactness of the policy's step on one GPU, see docs/internals/gpu.md; needs torch, transformers, pydantic, pytest
	PYTHONPATH=operator:trainer_image:tests $(or $(PYTHON),python3) -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . tests/gpu
	PYTHONPATH=operator:trainer_image:tests $(or $(PYTHON),python3) tests/gpu/policy_step.py

models: setup ## measure every causal family of transformers in small, writes docs/reference/models.md (minutes)
	PYTHONPATH=tests $(BIN)/python -m support.engines.model_families --table docs/reference/models.md
	$(BIN)/python -m pytest tests/unit/trainer/policy/test_layout_check.py tests/local/engines/test_model_families.py -m long -q

bench: setup ## training throughput against TRL, monitoring overhead
	PYTHONPATH=tests $(BIN)/python tests/bench/training/train_throughput.py
	PYTHONPATH=tests $(BIN)/python tests/bench/training/monitoring_overhead.py

lock: setup ## resolve requirements/*.txt anew from pyproject.toml
	scripts/lock.sh $(BIN)/uv

wheel: setup ## the one wheel that both images are made of, in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build -t wheel -d dist

sbom: setup $(SBOM) ## bills of materials of both images' Python packages in dist/, as CycloneDX holds them valid
	mkdir -p dist
	for of in operator=operator trainer=trainer-$(DEVICE); do \
	  .cache/sbom/bin/cyclonedx-py requirements requirements/$${of#*=}.txt --pyproject pyproject.toml \
	    --output-reproducible --validate -o dist/sbom-$${of%=*}.cdx.json; done

images: wheel ## docker images raggrpo/operator and raggrpo/trainer; DEVICE=cpu for machines without GPUs
	docker build $(IMAGE_ARGS) -t raggrpo/operator:$(VERSION) .
	docker build $(IMAGE_ARGS) --build-arg DEVICE=$(DEVICE) -f trainer_image/Dockerfile -t raggrpo/trainer:$(VERSION) .

clean: ## remove the environment and caches
	rm -rf .venv .cache/checkov .cache/sbom .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
