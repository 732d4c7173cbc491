# Custom resources of projects that don't run here: their CRDs alone, so that manifests are held against the real schemas.
# shellcheck shell=bash

# MODULE@VERSION, CHECKSUM as in a go.sum, FILES below the module's folder
CRD_SOURCES=(
    "github.com/kubeflow/trainer/v2@v2.0.0 h1:mnQSR9iPKItxyUR8mq66XsmxqKNVHwr9YYOB7BTU9dU= manifests/base/crds/trainer.kubeflow.org_*.yaml"
    "sigs.k8s.io/karpenter@v1.15.0 h1:5SEptlAvsOZbNg4qg8OSdF1qi6BEZHZLA020nXY7jGw= pkg/apis/crds/karpenter.sh_*.yaml"
    "github.com/aws/karpenter-provider-aws@v1.15.0 h1:3qnrxRxKHPg9Hd71D7xH4xKxPfmcrB30EFBrMz74mOs= pkg/apis/crds/karpenter.k8s.aws_*.yaml"
    "sigs.k8s.io/kueue@v0.17.0 h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I= config/components/crd/bases/*.yaml"
    "github.com/argoproj/argo-workflows/v3@v3.7.3 h1:b0o03RTLXIL7lQunDEvLoDTeI5TbfXe2obGaItvvifk= manifests/base/crds/minimal/argoproj.io_workflows.yaml"
    "github.com/kserve/kserve@v0.20.0 h1:Bs7HxmGV4KFqqptDcWseKv+mwD4YOYHJWcuVgPG2Gug= config/crd/full/serving.kserve.io_inferenceservices.yaml"
    "github.com/kubeflow/spark-operator/v2@v2.5.0 h1:NNgTHgQMbrGZSFJtprjssdtCaL/qlYYQY1EyXuRaP78= config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
)

apply_crds() {
    stamped crds "${CRD_SOURCES[*]}" copy_crds
    # The server checks them itself; kubectl's own check takes ten times as long.
    kube apply --server-side --validate=false --filename "$CRDS"
    # kubectl takes one without any status yet, as it is in its first moment, for an error.
    wait_for 60 "established custom resources" kube wait --for=condition=Established --timeout=60s --filename "$CRDS"
}

copy_crds() {
    local source module checksum files
    rm -rf "$CRDS"
    mkdir -p "$CRDS"
    for source in "${CRD_SOURCES[@]}"; do
        read -r module checksum files <<<"$source"
        copy_crds_of "$module" "$checksum" "$files"
    done
}

copy_crds_of() {
    local module=$1 checksum=$2 files=$3 found
    # A module that asks for a newer Go is an error to `go mod download`, which prints its checksum and keeps its files all the same; no
    # code of it is compiled here, so that is enough.
    found=$(GOTOOLCHAIN=local go mod download -json "$module" | jq -r .Sum || true)
    [[ $found == "$checksum" ]] || fail 1 "the CRDs of $module can't be used: its checksum is '$found', not '$checksum'"
    # shellcheck disable=SC2086 # the pattern is meant to expand
    cp "$(go env GOMODCACHE)/$module/"$files "$CRDS/"
}
