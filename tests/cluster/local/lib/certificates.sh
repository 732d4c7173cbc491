# A certificate authority for this cluster, and a kubeconfig for each of its programs and for the admin.
# shellcheck shell=bash

make_certificates() {
    mkdir -p "$PKI"
    chmod 700 "$PKI"
    [[ -f $ADMIN ]] && openssl x509 -checkend 86400 -noout -in "$PKI/ca.crt" >/dev/null && return
    rm -f "$PKI"/*
    openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=clrflow-cluster -keyout "$PKI/ca.key" -out "$PKI/ca.crt"
    openssl genrsa -out "$PKI/sa.key" 2048
    openssl rsa -in "$PKI/sa.key" -pubout -out "$PKI/sa.pub"

    local service=kubernetes.default.svc
    issue apiserver /CN=kube-apiserver "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local,IP:127.0.0.1,IP:$KUBERNETES_SERVICE_IP,IP:$NODE_IP"
    issue kubelet "/CN=$NODE_NAME" "DNS:$NODE_NAME,IP:$NODE_IP"
    issue kubelet-client "/O=system:nodes/CN=system:node:$NODE_NAME"
    issue kube-proxy /CN=system:kube-proxy
    issue kube-scheduler /CN=system:kube-scheduler
    issue kube-controller-manager /CN=system:kube-controller-manager
    issue admin /O=system:masters/CN=admin

    local user
    for user in kubelet-client kube-proxy kube-scheduler kube-controller-manager admin; do
        write_kubeconfig "$user" # admin's is the last: its file says that all are there
    done
}

# issue NAME SUBJECT [ALTERNATIVE_NAMES]
issue() {
    local file=$PKI/$1 subject=$2 names=${3:-}
    openssl req -newkey rsa:2048 -nodes -subj "$subject" -keyout "$file.key" -out "$file.csr"
    {
        echo "extendedKeyUsage=serverAuth,clientAuth"
        [[ -z $names ]] || echo "subjectAltName=$names"
    } >"$file.ext"
    openssl x509 -req -in "$file.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 -extfile "$file.ext" -out "$file.crt"
    rm "$file.csr" "$file.ext"
}

# Everything is inside the file, so it can be copied or mounted anywhere.
write_kubeconfig() {
    cat >"$PKI/$1.kubeconfig.new" <<EOF
apiVersion: v1
kind: Config
current-context: local
clusters:
- name: local
  cluster:
    server: https://$NODE_IP:6443
    certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")
users:
- name: $1
  user:
    client-certificate-data: $(base64 -w0 "$PKI/$1.crt")
    client-key-data: $(base64 -w0 "$PKI/$1.key")
contexts:
- name: local
  context: {cluster: local, user: $1}
EOF
    mv "$PKI/$1.kubeconfig.new" "$PKI/$1.kubeconfig"
}
