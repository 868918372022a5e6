# Requires Go, git, make and access to the Go module proxy. All other tools are built
# from pinned modules into .tools/, and again when a pin changes.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

DEMO ?= NUMAFORM_ENGINE_PLUGIN_DIR=$(CURDIR)/$(TOOLS)/plugins go run ./examples/demo
DEMO_CLUSTER ?= NUMAFORM_ENGINE_PLUGIN_DIR=$(CURDIR)/$(TOOLS)/plugins go run ./examples/demo-cluster
PKG ?= ./...
BENCH ?= .
BENCHFLAGS ?=
FUZZTIME ?= 60s
TESTFLAGS ?=
TEST_TIMEOUT ?= 60m

# The simulators are a separate module that shares no code with numaform.
IN_SIM := cd test/sim && GOWORK=off

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
HOST := $(shell go env GOHOSTOS)_$(shell go env GOHOSTARCH)

TOOLS := .tools
BIN := $(TOOLS)/bin
STAMPS := $(TOOLS)/stamps
PROVIDER_VERSION := $(shell sed -n 's|.*bpg/terraform-provider-proxmox v\([^ ]*\).*|\1|p' tools/provider/go.mod)
PROVIDER_DIR := $(TOOLS)/plugins/registry.opentofu.org/bpg/proxmox/$(PROVIDER_VERSION)/$(HOST)
PROVIDER := $(PROVIDER_DIR)/terraform-provider-proxmox_v$(PROVIDER_VERSION)
TOFU := $(BIN)/tofu
LINT := $(BIN)/golangci-lint
FUMPT := $(BIN)/gofumpt
CONTROLLER_GEN := $(BIN)/controller-gen
KUBE_VERSION := $(shell sed -n 's|.*k8s.io/kubernetes v\([^ ]*\).*|\1|p' tools/controlplane/go.mod)
APISERVER := $(BIN)/kube-apiserver
SCHEDULER := $(BIN)/kube-scheduler
CONTROLLER_MANAGER := $(BIN)/kube-controller-manager
ETCD := $(BIN)/etcd
CONTROL_PLANE := $(ETCD) $(APISERVER) $(SCHEDULER) $(CONTROLLER_MANAGER)
KUBELET := $(BIN)/kubelet
KUBE_PROXY := $(BIN)/kube-proxy
HELM := $(BIN)/helm
KUBECTL := $(BIN)/kubectl
HELM_VERSION := $(shell sed -n 's|.*helm.sh/helm/v3 v\([^ ]*\).*|\1|p' tools/helm/go.mod)
HELM_KUBE_MINOR := $(shell sed -n 's|.*k8s.io/client-go v0\.\([0-9]*\).*|\1|p' tools/helm/go.mod)

# A user's engine on PATH takes precedence over the one built here. The user's
# provider mirror and engine arguments must not affect a run.
USER_PATH := $(PATH)
export PATH := $(PATH):$(CURDIR)/$(BIN)
export CHECKPOINT_DISABLE := 1

# Each checkout has a linter cache of its own, even if it shares .tools with another one: the
# cache contains file names, which the path rules of .golangci.yml would not match.
export GOLANGCI_LINT_CACHE := $(CURDIR)/$(TOOLS)/lint-cache/$(shell printf %s '$(CURDIR)' | cksum | cut -d' ' -f1)
unexport TF_CLI_CONFIG_FILE TF_CLI_ARGS TF_DATA_DIR TF_WORKSPACE TF_LOG

# All builds use the settings of a release: static, and without directory names. So a
# package is compiled once for the tests, the linters and the image, in any checkout.
# The race detector requires CGO_ENABLED=1.
CGO_ENABLED ?= 0
export CGO_ENABLED
export GOFLAGS := $(strip $(shell go env GOFLAGS) -trimpath)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | \
		while IFS="$$(printf '\t')" read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: $(PROVIDER) engine ## run the command line against the Proxmox simulator, from pending pods to running VMs
	$(DEMO)

.PHONY: demo-cluster
demo-cluster: $(PROVIDER) engine $(CONTROL_PLANE) ## run the controller in a Kubernetes control plane on this machine: nodes join and leave
	$(DEMO_CLUSTER)

.PHONY: unit
unit: ## run the tests that require only Go: no engine, provider, control plane or QEMU
	go test -short -vet=off -ldflags='-s -w' $(TESTFLAGS) $$(go list ./... | grep -v '/test/\(backends\|bench\|browser\|chart\|cluster\|e2e\|faults\|forge\|hostile\|real\|release\|scale\|upgrade\)$$')

# LONG_TESTS are the packages whose tests take minutes. They start first, so that no CPU is
# idle at the end.
LONG_TESTS := ./test/cluster ./test/hostile ./test/e2e ./test/faults ./test/upgrade ./test/backends ./internal/scaler

# WITHOUT lists programs that this machine lacks; make test then omits the tests that need them.
# It can contain postgres, node, chromium, gcc, qemu, guest and promtool.
WITHOUT ?=
test: export NUMAFORM_WITHOUT = $(WITHOUT)
unless-without = $(if $(filter $(1),$(WITHOUT)),,$(2))

# system finds or installs the programs that make does not build, before it builds the others.
.PHONY: system
system:
	@sh tools/system.sh $(filter-out $(WITHOUT),postgres node chromium gcc qemu guest)

.PHONY: test
test: system $(call unless-without,promtool,promtool) $(call unless-without,qemu,qemu) $(call unless-without,chromium,chromium) \
	$(PROVIDER) $(TOFU) $(CONTROL_PLANE) $(HELM) $(KUBECTL) baseline $(call unless-without,gcc,gitea) $(call unless-without,node,site) ## run the tests of every change, with the real engines, provider and backends
	@# Run two packages per core, because tests wait half of the time. make verify runs vet. Without symbols, a binary is linked in half the time.
	go test -p 4 -timeout $(TEST_TIMEOUT) -vet=off -ldflags='-s -w' $(TESTFLAGS) $(if $(filter ./...,$(PKG)),$(LONG_TESTS)) $(PKG)
	$(if $(filter ./...,$(PKG)),$(IN_SIM) go test -vet=off -ldflags='-s -w' $(TESTFLAGS) ./...)
	$(if $(filter ./...,$(PKG)),cd tools/release && GOWORK=off go test -vet=off $(TESTFLAGS) ./...)
	@# A guest boots last, because a boot without KVM needs both cores. make nightly has run this test already.
	$(if $(filter ./...,$(PKG)),$(if $(NUMAFORM_NIGHTLY)$(filter gcc qemu guest,$(WITHOUT)),,$(MAKE) --no-print-directory demo-real))
	$(if $(WITHOUT),@echo "omitted the tests that need: $(WITHOUT)")

# MUTATE_PKG are the packages that decide what is applied, deleted and recorded, and which
# nodes join.
MUTATE_PKG ?= state/guard state internal/store internal/scaler internal/approval internal/controllers/csr internal/agent/claim

.PHONY: mutate
mutate: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) postgres ## mutation testing: the tests of a package must detect nine of ten changes to it
	go run ./tools/mutate -timeout 10m $(MUTATEFLAGS) $(MUTATE_PKG)

# RACE_PKG are the packages that start goroutines.
RACE_PKG ?= ./fleet ./generator ./internal/... ./planner ./state/... ./topology

.PHONY: race
race: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) postgres gitea ## run the tests of every package with goroutines under the race detector, which requires a C compiler
	@# In TestRunCluster, the controller runs in the test process and sets client-go's logger while other clients of the test use it.
	CGO_ENABLED=1 go test -race -p 2 -timeout $(TEST_TIMEOUT) -vet=off -skip '^TestRunCluster$$' $(TESTFLAGS) $(RACE_PKG)
	$(IN_SIM) CGO_ENABLED=1 go test -race -vet=off $(TESTFLAGS) ./...

# NIGHTLY selects every kill, attack, edited state, engine and version; make test runs one of
# each kind.
NIGHTLY := NUMAFORM_NIGHTLY=1

.PHONY: nightly
nightly: guest-image ## run all tests with all cases, including those that make test omits
	$(MAKE) test $(NIGHTLY) TEST_TIMEOUT=90m

.PHONY: test-faults
test-faults: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) ## run the tests of test/faults with each kill ten times, and repeat the faults of the controller; reports where each kill landed
	$(NIGHTLY) go test -timeout 120m -v ./test/faults -faults.rounds=10
	go test -timeout 60m ./test/e2e -run TestTwoClustersOnOneProxmox -runs 20
	$(NIGHTLY) go test -timeout 60m -v ./test/cluster -run 'TestKillController|TestTwoReplicas|TestAPIServerLost|TestBurstDuringSlowClone' -cluster.kills 25

.PHONY: test-hostile
test-hostile: $(PROVIDER) $(TOFU) baseline ## run every attack of test/hostile in every place and with each command
	$(NIGHTLY) go test -timeout 60m -v ./test/hostile -hostile.full

.PHONY: demo-real
demo-real: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) $(HELM) guest-image ## show each stage of a node that QEMU boots, from a pending pod to a running one, and back
	$(NIGHTLY) go test -count=1 -timeout 40m -v ./test/real -run '^TestJoin$$'

# JOINS is the number of nodes that join in make test-real, one after another.
JOINS ?= 10

.PHONY: test-real
test-real: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) $(HELM) guest-image test-image ## boot real guests with QEMU that join and run pods, JOINS times, check their NUMA nodes, inject faults, and run numaform itself in one; minutes for each without KVM
	$(NIGHTLY) go test -timeout 240m -v ./test/real -real.joins $(JOINS) -real.inguest

.PHONY: upgrade-matrix
upgrade-matrix: $(PROVIDER) $(TOFU) $(CONTROL_PLANE) baseline postgres ## upgrade fleets of the baseline release to this version, and roll them back
	$(NIGHTLY) go test -p 1 -timeout 60m -v ./test/upgrade ./test/cluster -run TestMatrix

.PHONY: build
build: ## build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/...
	$(IN_SIM) CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(CURDIR)/bin/ ./cmd/pvesim

IMAGE := $(TOOLS)/image
IMAGE_ARCHS ?= amd64 arm64
IMAGE_NAME ?= ghcr.io/numaform/numaform
IMAGE_OUT ?= dist/numaform-image.tar
IMAGE_TOFU := $(IMAGE_ARCHS:%=$(IMAGE)/%/tofu)
IMAGE_PROVIDER := $(IMAGE_ARCHS:%=$(IMAGE)/%/terraform-provider-proxmox)
IMAGE_NUMAFORM := $(IMAGE_ARCHS:%=$(IMAGE)/%/numaform)

.PHONY: image
image: $(IMAGE_TOFU) $(IMAGE_PROVIDER) $(IMAGE_NUMAFORM) image-pack ## build the image in dist/, an OCI layout for amd64 and arm64, without docker

.PHONY: image-pack
image-pack: image-licenses
	@mkdir -p $(dir $(IMAGE_OUT))
	cd tools/image && GOWORK=off go run . -dir '$(CURDIR)/$(IMAGE)' -archs '$(IMAGE_ARCHS)' \
		-licenses '$(CURDIR)/$(IMAGE)/licenses' -provider-version '$(PROVIDER_VERSION)' \
		-name '$(IMAGE_NAME)' -version '$(VERSION)' -out '$(CURDIR)/$(IMAGE_OUT)'

$(IMAGE_NUMAFORM): FORCE
	@mkdir -p $(@D)
	CGO_ENABLED=0 GOOS=linux GOARCH=$(notdir $(@D)) go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $@ ./cmd/numaform

# test-image builds the image that the chart installs by default, for QEMU test guests.
.PHONY: test-image
test-image:
	@$(MAKE) --no-print-directory image IMAGE_ARCHS=amd64 IMAGE_OUT=$(TOOLS)/guest/numaform-image.tar \
		VERSION="$$(sed -n 's/^appVersion: //p' charts/numaform/Chart.yaml)"

# image-licenses copies the license of each program and records the module of its source.
.PHONY: image-licenses
image-licenses:
	@rm -rf $(IMAGE)/licenses
	@for program in 'numaform . github.com/numaform/numaform' 'opentofu tools/tofu github.com/opentofu/opentofu' \
		'terraform-provider-proxmox tools/provider github.com/bpg/terraform-provider-proxmox'; do \
		set -- $$program; mkdir -p $(IMAGE)/licenses/$$1; \
		found=$$(cd $$2 && go list -m -f '{{.Dir}}' $$3) && install -m 644 "$$found/LICENSE" $(IMAGE)/licenses/$$1/ && \
		(cd $$2 && go list -m -f '{{.Path}} {{.Version}}' $$3) >$(IMAGE)/licenses/$$1/SOURCE || exit 1; \
	done

DEB_ARCHS ?= amd64 arm64

.PHONY: deb
deb: ## build the Debian package of the host agent in dist/, with dpkg-deb
	@for arch in $(DEB_ARCHS); do \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' \
			-o $(TOOLS)/deb/$$arch/numaform-agent ./cmd/numaform-agent && \
		sh packaging/deb/build.sh '$(VERSION)' $$arch $(TOOLS)/deb/$$arch/numaform-agent dist || exit 1; \
	done

.PHONY: chart
chart: $(HELM) ## lint the chart, render examples/manifests and pack dist/numaform-CHARTVERSION.tgz
	$(HELM) lint --strict charts/numaform
	go test ./test/chart -run TestManifestsAreTheChart -update
	@mkdir -p dist
	$(HELM) package charts/numaform --destination dist

# A release is reproducible: the caller's Go settings must not affect it.
RELEASE := $(TOOLS)/release
RELEASE_GO := go1.26.8
RELEASE_PLATFORMS := linux_amd64 linux_arm64 darwin_amd64 darwin_arm64
RELEASE_VERSION = $(shell printf %s '$(VERSION)' | sed -n 's/^v\([0-9][0-9]*\.[0-9][0-9]*\.[0-9].*\)/\1/p; t; s/^/0.0.0-g/p')
RELEASE_COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
RELEASE_BUILDER ?= https://github.com/numaform/numaform/blob/main/docs/releasing.md\#build-a-release-by-hand
CHART_NAME ?= ghcr.io/numaform/charts/numaform

.PHONY: release
release: ## build all files of a release in dist/, see docs/releasing.md
	@GOTOOLCHAIN=$(RELEASE_GO) GOAMD64=v1 GOARM64=v8.0 GOWORK=off CGO_ENABLED=0 LC_ALL=C TZ=UTC \
		$(MAKE) release-build release-pack GOFLAGS='-trimpath -buildvcs=false'

.PHONY: release-build
release-build: $(IMAGE_TOFU) $(IMAGE_PROVIDER) $(IMAGE_NUMAFORM) $(HELM)
	@for platform in $(RELEASE_PLATFORMS); do \
		programs=./cmd/numaform; \
		case $$platform in linux_*) programs="$$programs ./cmd/numaform-agent" ;; esac; \
		mkdir -p $(RELEASE)/$$platform && CGO_ENABLED=0 GOOS=$${platform%_*} GOARCH=$${platform#*_} \
			go build -ldflags '-s -w -X main.version=$(VERSION)' -o $(RELEASE)/$$platform/ $$programs || exit 1; \
	done
	@rm -rf $(RELEASE)/man
	go run -ldflags '-s -w' ./cmd/numaform man $(RELEASE)/man

# release-pack packs the built programs. Only make release builds them with the settings above.
.PHONY: release-pack
release-build release-pack: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null))
release-pack:
	@rm -rf dist $(RELEASE)/chart
	@$(MAKE) --no-print-directory image-pack VERSION='$(RELEASE_VERSION)'
	@for arch in $(DEB_ARCHS); do \
		sh packaging/deb/build.sh '$(RELEASE_VERSION)' $$arch $(RELEASE)/linux_$$arch/numaform-agent dist || exit 1; \
	done
	@$(HELM) package charts/numaform --version '$(RELEASE_VERSION)' --app-version '$(RELEASE_VERSION)' --destination $(RELEASE)/chart
	@cd tools/release && GOWORK=off go run . -root '$(CURDIR)' -programs '$(CURDIR)/$(RELEASE)' -image '$(CURDIR)/$(IMAGE)' \
		-chart '$(CURDIR)/$(RELEASE)/chart/numaform-$(RELEASE_VERSION).tgz' -version '$(RELEASE_VERSION)' -commit '$(RELEASE_COMMIT)' \
		-epoch "$$SOURCE_DATE_EPOCH" -builder '$(RELEASE_BUILDER)' -out '$(CURDIR)/dist'

.PHONY: publish
publish: ## push the image and chart that make release built in dist/ to their registries
	@cd tools/release && GOWORK=off go run . publish -out '$(CURDIR)/dist' -image '$(IMAGE_NAME)' -chart '$(CHART_NAME)'

.PHONY: man
man: ## write the man pages of all commands to dist/man
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) go run ./cmd/numaform man dist/man

.PHONY: lint
lint: $(LINT) ## run the linters of .golangci.yml
	$(LINT) run $(PKG)
	$(IN_SIM) $(CURDIR)/$(LINT) run ./...

.PHONY: fmt
fmt: $(FUMPT) ## format the Go files
	git ls-files -co --exclude-standard -- '*.go' | xargs $(FUMPT) -w

# The generated files are deepcopy functions and CRDs from the API types, and the CRDs of
# the linked Karpenter. verify sets OUT to another root, to compare without changes.
OUT ?= .
CRDS := charts/numaform/crds

.PHONY: generate
generate: $(CONTROLLER_GEN) ## regenerate generated files
	mkdir -p $(OUT)/api/v1alpha1 $(OUT)/$(CRDS)
	$(CONTROLLER_GEN) object crd paths=./api/... \
		output:object:dir=$(OUT)/api/v1alpha1 output:crd:dir=$(OUT)/$(CRDS)
	@karpenter=$$(go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter) && \
	for crd in autoscaling.x-k8s.io_capacitybuffers karpenter.sh_nodeclaims karpenter.sh_nodeoverlays karpenter.sh_nodepools; do \
		{ go list -m -f '# Copied from {{.Path}} {{.Version}} (Apache License 2.0) by make generate. DO NOT EDIT.' sigs.k8s.io/karpenter && \
			cat "$$karpenter/pkg/apis/crds/$$crd.yaml"; } >$(OUT)/$(CRDS)/$$crd.yaml || exit 1; \
	done

.PHONY: schemas
schemas: ## regenerate docs/schemas, the JSON schemas of outputs; a test checks that they are up to date
	go test ./internal/cli -run '^TestSchemas$$' -count=1 -update

.PHONY: verify
verify: verify-modules verify-released verify-format verify-generated verify-layers vet lint ## run all checks that are not tests: modules, format, generated files, floors, linters

.PHONY: verify-modules
verify-modules:
	go mod verify
	go mod tidy -diff
	$(IN_SIM) go mod verify
	$(IN_SIM) go mod tidy -diff

# Node files call released modules as long as their VMs exist, so modules/released must not
# change. It is compared with the commit at which this branch left main, or on main with the
# previous commit.
.PHONY: verify-released
verify-released:
	@main=$$(git rev-parse -q --verify origin/main || git rev-parse -q --verify main || true); \
	base=$$(test -z "$$main" || git merge-base HEAD "$$main"); \
	test "$$base" != "$$(git rev-parse HEAD)" || base=$$(git rev-parse -q --verify 'HEAD^' || true); \
	test -n "$$base" || { echo "verify-released: this clone has no main to compare with"; exit 0; }; \
	changed=$$(git diff --no-renames --name-status --diff-filter=a "$$base" -- modules/released); \
	test -z "$$changed" || { echo "$$changed"; echo "modules/released is append-only: restore these files with git checkout $$base -- modules/released" >&2; exit 1; }

.PHONY: release-modules
release-modules: ## add the current modules to modules/released
	go test ./modules -run TestCurrentIsReleased -update

.PHONY: verify-format
verify-format: $(FUMPT)
	@echo "gofumpt -l"; \
	unformatted=$$(git ls-files -co --exclude-standard -- '*.go' | xargs $(FUMPT) -l); \
	test -z "$$unformatted" || { echo "$$unformatted"; echo "not formatted: run make fmt" >&2; exit 1; }

.PHONY: verify-generated
verify-generated: $(CONTROLLER_GEN)
	@rm -rf $(TOOLS)/generated
	@$(MAKE) --no-print-directory generate OUT=$(TOOLS)/generated
	@diff -u api/v1alpha1/zz_generated.deepcopy.go $(TOOLS)/generated/api/v1alpha1/zz_generated.deepcopy.go && \
	diff -ru $(CRDS) $(TOOLS)/generated/$(CRDS) || \
		{ echo "generated files are stale: run make generate" >&2; exit 1; }

.PHONY: verify-layers
verify-layers:
	go test ./internal/layering

.PHONY: vet
vet:
	go vet $(PKG)
	cd tools/image && GOWORK=off go vet ./...
	cd tools/release && GOWORK=off go vet ./...
	$(IN_SIM) go vet ./...

.PHONY: bench
bench: $(PROVIDER) engine $(CONTROL_PLANE) $(HELM) baseline ## run the benchmarks; BENCH=regexp selects some
	go test -p 1 -timeout 180m -run '^$$' -bench '$(BENCH)' -benchmem $(PKG) $(BENCHFLAGS)

.PHONY: bench-update
bench-update: ## update the committed figures and docs/performance.md; run it on an otherwise idle machine
	$(MAKE) bench PKG=./test/bench BENCHFLAGS=-update
	go test ./test/bench -run TestReadmeShowsTheFigures -update

# Minimizing inputs that only increase the coverage would take all of the time for
# large packages.
.PHONY: fuzz
fuzz: ## fuzz every parser, one after another, FUZZTIME each
	@git grep -oE '^func Fuzz[A-Za-z0-9]+' -- '*_test.go' | sed 's|/[^/]*:func | |' | while read -r dir name; do \
		echo "$$name ($$dir)"; \
		go test -C "$$dir" -vet=off -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x . || exit 1; \
	done

.PHONY: bench-placement
bench-placement: ## compare placers on 14 real machines, and write the tables of docs/placement.md
	go test ./test/placement -v -count=1 -timeout 60m -run TestTables -every -seeds 10 -update
	go test ./test/placement -v -count=1 -timeout 60m -run TestTables -every -seeds 10 -heldout -update

.PHONY: measure
measure: ## count lines, functions, callers and imports of each package of the product
	@go run ./tools/measure

.PHONY: provider
provider: $(PROVIDER) ## build the pinned Proxmox provider into .tools/

.PHONY: tools
tools: $(PROVIDER) $(TOFU) $(LINT) $(FUMPT) $(CONTROLLER_GEN) $(CONTROL_PLANE) $(HELM) $(KUBECTL) ## build every pinned tool, including OpenTofu

.PHONY: clean
clean: ## remove build output, but not the tools in .tools/
	rm -rf bin dist test/sim/bin

# engine builds OpenTofu unless PATH has tofu or terraform 1.8 or later.
.PHONY: engine
engine:
	@PATH='$(USER_PATH)' sh tools/engine.sh || $(MAKE) --no-print-directory $(TOFU)

# postgres finds the PostgreSQL server of the tests, or installs it.
.PHONY: postgres
postgres:
	@sh tools/system.sh postgres

# gitea builds the forge of the tests. It is the only program that requires a C compiler.
.PHONY: gitea
gitea:
	@sh tools/gitea.sh $(CURDIR)/$(TOOLS)

# baseline builds the numaform of the commit in tools/baseline/commit.
.PHONY: baseline
baseline:
	@sh tools/baseline.sh $(TOOLS)/baseline

# promtool finds or downloads the program that tests the chart's alerts.
.PHONY: promtool
promtool:
	@sh tools/promtool.sh $(TOOLS)/promtool

# Pages without a place in the navigation, and links to nothing, fail before the build.
.PHONY: site
site: ## build the documentation site in dist/site, with npm, and test its search
	@go test ./test/links
	@sh tools/site.sh $(CURDIR)/$(TOOLS) $(CURDIR)/dist/site

# qemu finds or installs QEMU and the kernel for the tests of the host agent.
.PHONY: qemu
qemu:
	@sh tools/qemu.sh $(TOOLS)/kernel/vmlinuz

# chromium finds or installs the browser, and downloads axe-core, for the tests of the web page.
.PHONY: chromium
chromium:
	@sh tools/chromium.sh $(TOOLS)/axe

.PHONY: guest-image
guest-image: $(KUBELET) $(KUBE_PROXY) ## build the disk of QEMU test guests, from Debian packages and the pinned kubelet
	@sh tools/guest-image.sh $(CURDIR)/$(BIN) $(TOOLS)/guest

# --- pinned tools -------------------------------------------------------------
#
# A stamp holds the hash of a tool's pins, of its flags and of the Go version. It
# is written, and the tool is built again, only when that hash changes. A build
# writes to a unique name and is then renamed, so that concurrent makes are safe.

LDFLAGS = -s -w

# Tools are built for this machine, except the programs of the image.
TARGET = GOOS= GOARCH=
$(IMAGE_TOFU) $(IMAGE_PROVIDER): TARGET = GOOS=linux GOARCH=$(notdir $(@D))

$(PROVIDER) $(IMAGE_PROVIDER): PACKAGE = github.com/bpg/terraform-provider-proxmox
$(PROVIDER) $(IMAGE_PROVIDER): LDFLAGS = -s -w -X main.version=$(PROVIDER_VERSION)
$(PROVIDER) $(IMAGE_PROVIDER): $(STAMPS)/provider
	$(call build-tool,tools/provider)

$(TOFU) $(IMAGE_TOFU): PACKAGE = github.com/opentofu/opentofu/cmd/tofu
$(TOFU) $(IMAGE_TOFU): LDFLAGS = -s -w -X github.com/opentofu/opentofu/version.dev=no
$(TOFU) $(IMAGE_TOFU): $(STAMPS)/tofu
	$(call build-tool,tools/tofu)

# Without these flags, Kubernetes would report the version v0.0.0.
KUBE_STAMP = k8s.io/component-base/version.git
KUBERNETES := $(APISERVER) $(SCHEDULER) $(CONTROLLER_MANAGER) $(KUBELET) $(KUBE_PROXY)
$(KUBERNETES): PACKAGE = k8s.io/kubernetes/cmd/$(@F)
$(KUBERNETES): LDFLAGS = -s -w -X $(KUBE_STAMP)Version=v$(KUBE_VERSION) \
	-X $(KUBE_STAMP)Major=$(word 1,$(subst ., ,$(KUBE_VERSION))) -X $(KUBE_STAMP)Minor=$(word 2,$(subst ., ,$(KUBE_VERSION)))
$(ETCD): PACKAGE = go.etcd.io/etcd/server/v3
$(CONTROL_PLANE) $(KUBELET) $(KUBE_PROXY): $(STAMPS)/controlplane
	$(call build-tool,tools/controlplane)

# Without these flags, helm would report the version v3, and assume
# Kubernetes 1.20 for every cluster.
HELM_MODULE = helm.sh/helm/v3
$(HELM): PACKAGE = $(HELM_MODULE)/cmd/helm
$(HELM): LDFLAGS = -s -w -X $(HELM_MODULE)/internal/version.version=v$(HELM_VERSION) \
	-X $(HELM_MODULE)/pkg/chartutil.k8sVersionMinor=$(HELM_KUBE_MINOR) -X $(HELM_MODULE)/pkg/lint/rules.k8sVersionMinor=$(HELM_KUBE_MINOR)
$(HELM): $(STAMPS)/helm
	$(call build-tool,tools/helm)

$(KUBECTL): PACKAGE = .
$(KUBECTL): $(STAMPS)/kubectl
	$(call build-tool,tools/kubectl)

$(LINT): PACKAGE = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(FUMPT): PACKAGE = mvdan.cc/gofumpt
$(CONTROLLER_GEN): PACKAGE = sigs.k8s.io/controller-tools/cmd/controller-gen
$(LINT) $(FUMPT) $(CONTROLLER_GEN): $(STAMPS)/go.tools
	$(call build-tool,.,-modfile=go.tools.mod)

# build-tool builds PACKAGE in module directory $(1) with more go flags $(2).
define build-tool
@echo "building $(@F): minutes the first time, then not again until its pin changes"
@mkdir -p $(@D)
@cd $(1) && $(TARGET) GOWORK=off CGO_ENABLED=0 go build $(2) -trimpath \
	-ldflags '$(LDFLAGS)' -o $(CURDIR)/$@.$$$$ $(PACKAGE) && mv -f $(CURDIR)/$@.$$$$ $(CURDIR)/$@
endef

$(STAMPS)/provider: PINS = tools/provider/go.mod tools/provider/go.sum
$(STAMPS)/tofu: PINS = tools/tofu/go.mod tools/tofu/go.sum
$(STAMPS)/controlplane: PINS = tools/controlplane/go.mod tools/controlplane/go.sum
$(STAMPS)/helm: PINS = tools/helm/go.mod tools/helm/go.sum
$(STAMPS)/kubectl: PINS = tools/kubectl/go.mod tools/kubectl/go.sum
$(STAMPS)/go.tools: PINS = go.tools.mod go.tools.sum

$(STAMPS)/provider $(STAMPS)/tofu $(STAMPS)/controlplane $(STAMPS)/helm $(STAMPS)/kubectl $(STAMPS)/go.tools: FORCE
	@mkdir -p $(@D)
	@key=$$({ go env GOVERSION; cat $(PINS); sed -n '/pinned tools/,$$p' Makefile; } | git hash-object --stdin); \
	test "$$(cat $@ 2>/dev/null)" = "$$key" || echo "$$key" >$@

.PHONY: FORCE
FORCE:
