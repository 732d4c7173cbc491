# The Kubeflow training operator as its own project deploys it: CRDs, rights, webhooks and certificates are all the real ones.
# shellcheck shell=bash

start_operator() {
    local folder=$ROOT/operator sources
    sources=$(module_folder training-operator github.com/kubeflow/training-operator)
    mkdir -p "$folder"
    # Ours are only the images and a probe that looks more often. The init container of the workers calls nslookup, which the base image has.
    cat >"$folder/kustomization.yaml" <<EOF
resources: ["$(realpath --relative-to="$folder" "$sources/manifests/overlays/standalone")"]
images: [{name: kubeflow/training-operator, newName: localhost/training-operator, newTag: "1"}]
patches:
- target: {kind: Deployment, name: training-operator}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args, value: ["--pytorch-init-container-image=localhost/base:1"]}
    - {op: replace, path: /spec/template/spec/containers/0/readinessProbe, value: {httpGet: {path: /readyz, port: 8081}, periodSeconds: 1}}
EOF
    kubectl kustomize "$folder" >"$folder/all.yaml"
    kube apply --server-side --filename "$folder/all.yaml" # server-side: its CRDs are too large for the client's annotation
    kube --namespace kubeflow rollout status deployment/training-operator --timeout=90s
}

# Eight fake p5.48xlarge nodes, whose pods "run" only in the API: enough to test placement with the real scheduler and the real operator.
start_kwok() {
    local sources
    sources=$(module_folder kubernetes sigs.k8s.io/kwok)
    {
        kubectl kustomize "$sources/kustomize/stage/fast"
        echo ---
        cat "$HERE/config/kwok-finish.yaml"
    } >"$ROOT/kwok.yaml"
    start kwok "$BIN/kwok" --config="$ROOT/kwok.yaml" --kubeconfig="$ADMIN" --node-ip="$NODE_IP" \
        --manage-nodes-with-label-selector=type=kwok --node-lease-duration-seconds=40
}
