#!/bin/sh
# install.sh VERSION SHA256: EFA's user-space libraries into the image that is being built; the kernel module is the node's matter.
set -eu
version=$1 sha256=$2
archive=/efa/aws-efa-installer-$version.tar.gz

if [ ! -f "$archive" ]; then
    echo "error: images/efa/${archive##*/} isn't there; put the installer's archive into images/efa (see README.md there)" >&2
    exit 2
fi
if [ -z "$sha256" ]; then
    echo "error: EFA_SHA256 is empty; give the checksum that is published for aws-efa-installer-$version.tar.gz as a build argument" >&2
    exit 2
fi
echo "$sha256  $archive" | sha256sum --check --strict -

mkdir /tmp/efa
tar --extract --gzip --file "$archive" --directory /tmp/efa --strip-components 1 --no-same-owner
cd /tmp/efa
apt-get update
# --minimal leaves out MPI; signatures of single packages need not be checked again, as the archive's checksum was.
./efa_installer.sh --yes --minimal --skip-kmod --skip-limit-conf --no-verify
# The plugin is a package of its own, which a minimal installation may leave out.
if [ -z "$(find /opt/amazon -name 'libnccl-net*.so')" ]; then
    find /tmp/efa -name '*nccl-ofi*.deb' -path '*DEBIAN12*' -path "*$(uname -m)*" -exec dpkg --install {} +
fi

for library in libfabric.so libnccl-net; do
    folder=$(find /opt/amazon -name "$library*" -exec dirname {} \; | head -n 1)
    if [ -z "$folder" ]; then
        echo "error: EFA installer $version brought no $library; take a version that carries libfabric and aws-ofi-nccl (1.38 or newer)" >&2
        exit 1
    fi
    echo "$folder" >>/etc/ld.so.conf.d/efa.conf
done
ldconfig
cat /opt/amazon/efa_installed_packages
rm -rf /tmp/efa /var/lib/apt/lists/*
