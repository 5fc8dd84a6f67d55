"""Egress rules of a job's pods: DNS, pods of the job, and the servers named in the job's spec.

Only fields that are marked as servers count, not the values of environment variables.

A NetworkPolicy matches addresses and pods, not host names. A Service name therefore admits all pods
of its namespace on any port, because network plugins match the port of the pod and not that of the
Service. Any other host name admits its port on all addresses except the API server's. kube-proxy
rewrites the Service address of the API server to an endpoint address before most plugins match it.
Therefore `api_server` must also list the endpoint addresses: otherwise a rule for an external host
on the same port also admits the API server.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from raggrpo_api.fields.kubernetes_names import NAMESPACE
from raggrpo_api.job import Metadata
from raggrpo_operator.core.spec.servers import Address as Server

from .cluster_settings import ClusterSettings
from .metadata import Manifest
from .policy_selectors import namespace_peer, policy_port

ALL_ADDRESSES = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
METADATA_SERVICES = (
    "169.254.0.0/16",
    "64:ff9b:1::/48",
    "fe80::/10",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
)
"""Metadata services that return the node's credentials: link-local, AWS, Google, Alibaba, Azure and
Oracle, and the NAT64 prefix for local use, which may map to them."""
NAT64 = IPv6Network("64:ff9b::/96")
EMBEDDED = (
    (NAT64, 0),
    (IPv6Network("2002::/16"), 80),  # 6to4
    (IPv6Network("::/96"), 0),  # IPv4-compatible
)
"""Networks whose addresses embed an IPv4 address, each with the number of bits that follow it."""
CLUSTER_DOMAIN = "cluster.local."
DNS_PORT = 53
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


def egress_rules(
    job: Metadata,
    settings: ClusterSettings,
    addresses_of_servers: Iterable[Server],
    *,
    peers: Sequence[Manifest] = (),
    own_rules: Sequence[Manifest] = (),
) -> list[Manifest]:
    """Return the egress rules; if egress is unrestricted, one empty rule that admits everything.

    `peers` are reached on all ports, and `own_rules` are added to those for servers.
    """
    if not settings.restrict_egress:
        return [{}]
    denied = [ip_network(each) for each in (*settings.api_server, *METADATA_SERVICES)]
    denied += [_behind_nat64(each) for each in denied if isinstance(each, IPv4Network)]
    namespaces, ports, addresses = set[str](), set[int](), set[tuple[str, int]]()
    for host, port in addresses_of_servers:
        if address := _address(host):
            forms = {address, _embedded(address) or address}
            if not any(form in network for form in forms for network in denied):
                addresses.add((str(ip_network(address)), port))
            continue
        candidates, is_external = _locations(host, job.namespace)
        namespaces |= set(filter(NAMESPACE.fullmatch, candidates))
        ports |= {port} if is_external else set()
    rules: list[Manifest] = [
        {"ports": [policy_port(DNS_PORT, "UDP"), policy_port(DNS_PORT)]},
    ]
    if everywhere := [*peers, *map(namespace_peer, sorted(namespaces))]:
        rules.append({"to": everywhere})
    rules += own_rules
    if ports:
        blocks = [_block(network, denied) for network in ALL_ADDRESSES]
        rules.append({"to": blocks, "ports": [policy_port(each) for each in sorted(ports)]})
    for cidr, port in sorted(addresses):
        rules.append({"to": [{"ipBlock": {"cidr": cidr}}], "ports": [policy_port(port)]})
    return [*rules, *settings.egress]


def _address(host: str) -> Address | None:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _embedded(address: Address) -> IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address, or None."""
    for network, shift in EMBEDDED:
        if address in network:
            return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return None


def _behind_nat64(network: IPv4Network) -> IPv6Network:
    first = int(NAT64.network_address) + int(network.network_address)
    return IPv6Network((first, 96 + network.prefixlen))


def _locations(host: str, own_namespace: str) -> tuple[set[str], bool]:
    """Return the namespaces a host name may be in, and whether it may be outside the cluster."""
    if not host:
        return set(), True
    service, svc, domain = f"{host}.".partition(".svc.")
    if svc and "." in service:
        return {service.rpartition(".")[2]}, domain not in ("", CLUSTER_DOMAIN)
    _, dot, rest = host.partition(".")
    if not dot:
        return {own_namespace}, False
    # For example, rag.search may be Service rag in namespace search.
    return ({rest} if "." not in rest else set()), True


def _block(network: Network, denied: Sequence[Network]) -> Manifest:
    excepted = [str(each) for each in denied if each.version == network.version]
    return {"ipBlock": {"cidr": str(network), "except": excepted}}
