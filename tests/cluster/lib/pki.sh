# Certificates and kubeconfigs of the cluster. Sourced.

make_pki() {
    local pki=$DIR/pki user
    [ -e "$pki/done" ] && return
    rm -rf "$pki"
    mkdir -p "$pki"
    (
        cd "$pki"
        new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
        cert() { # name subject [names]
            new_key "$1"
            openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
            openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" \
                -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "${3:+subjectAltName=$3}")
            rm "$1.csr"
        }
        new_key ca
        openssl req -x509 -new -key ca.key -subj /CN=dracpu-test -days 365 -out ca.crt
        new_key sa
        openssl ec -in sa.key -pubout -out sa.pub
        cert apiserver /CN=kube-apiserver \
            "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$SERVICE_IP,IP:$NODE_IP"
        cert admin /O=system:masters/CN=admin
        cert controller-manager /CN=system:kube-controller-manager
        cert scheduler /CN=system:kube-scheduler
        cert kubelet "/O=system:nodes/CN=system:node:$NODE"
        cert kubelet-server "/CN=$NODE" "DNS:$NODE,IP:$NODE_IP"
        cert guest "/O=system:nodes/CN=system:node:$GUEST"
        cert guest-server "/CN=$GUEST" "DNS:$GUEST,IP:$GUEST_IP"
        cert apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
    ) >"$DIR/log/openssl.log" 2>&1
    for user in admin controller-manager scheduler kubelet; do kubeconfig $user >"$DIR/$user.kubeconfig"; done
    chmod 600 "$DIR"/*.kubeconfig
    cp -p "$DIR/admin.kubeconfig" "$DIR/kubeconfig"
    touch "$pki/done"
}

# With everything inside, so that the file can be carried away.
kubeconfig() {
    data() { base64 -w0 "$DIR/pki/$1"; }
    cat <<Y
apiVersion: v1
kind: Config
clusters: [{name: dracpu-test, cluster: {server: "https://$NODE_IP", certificate-authority-data: $(data ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(data "$1.crt"), client-key-data: $(data "$1.key")}}]
contexts: [{name: dracpu-test, context: {cluster: dracpu-test, user: $1}}]
current-context: dracpu-test
Y
}
