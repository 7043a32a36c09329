"""The resources that a Kubernetes 1.36 API server serves itself: used to resolve names when no
server can be asked.

Source: kubernetes v1.36.3, api/discovery/aggregated_v2.json and api__v1.json (every group and
version, alpha ones included).
"""

from __future__ import annotations

from collections.abc import Iterator

from watchrelay.model.names import ResourceName
from watchrelay.model.resources import Resource, ServedResource

_TABLE = """
v1
  bindings Binding namespaced - unwatchable
  componentstatuses ComponentStatus cluster cs unwatchable
  configmaps ConfigMap namespaced cm
  endpoints Endpoints namespaced ep
  events Event namespaced ev
  limitranges LimitRange namespaced limits
  namespaces Namespace cluster ns
  nodes Node cluster no
  persistentvolumeclaims PersistentVolumeClaim namespaced pvc
  persistentvolumes PersistentVolume cluster pv
  pods Pod namespaced po
  podtemplates PodTemplate namespaced
  replicationcontrollers ReplicationController namespaced rc
  resourcequotas ResourceQuota namespaced quota
  secrets Secret namespaced
  serviceaccounts ServiceAccount namespaced sa
  services Service namespaced svc
apiregistration.k8s.io/v1
  apiservices APIService cluster
apps/v1
  controllerrevisions ControllerRevision namespaced
  daemonsets DaemonSet namespaced ds
  deployments Deployment namespaced deploy
  replicasets ReplicaSet namespaced rs
  statefulsets StatefulSet namespaced sts
events.k8s.io/v1
  events Event namespaced ev
authentication.k8s.io/v1
  selfsubjectreviews SelfSubjectReview cluster - unwatchable
  tokenreviews TokenReview cluster - unwatchable
authorization.k8s.io/v1
  localsubjectaccessreviews LocalSubjectAccessReview namespaced - unwatchable
  selfsubjectaccessreviews SelfSubjectAccessReview cluster - unwatchable
  selfsubjectrulesreviews SelfSubjectRulesReview cluster - unwatchable
  subjectaccessreviews SubjectAccessReview cluster - unwatchable
autoscaling/v2
  horizontalpodautoscalers HorizontalPodAutoscaler namespaced hpa
autoscaling/v1
  horizontalpodautoscalers HorizontalPodAutoscaler namespaced hpa
batch/v1
  cronjobs CronJob namespaced cj
  jobs Job namespaced
certificates.k8s.io/v1
  certificatesigningrequests CertificateSigningRequest cluster csr
certificates.k8s.io/v1beta1
  clustertrustbundles ClusterTrustBundle cluster
  podcertificaterequests PodCertificateRequest namespaced
certificates.k8s.io/v1alpha1
  clustertrustbundles ClusterTrustBundle cluster
networking.k8s.io/v1
  ingressclasses IngressClass cluster
  ingresses Ingress namespaced ing
  ipaddresses IPAddress cluster ip
  networkpolicies NetworkPolicy namespaced netpol
  servicecidrs ServiceCIDR cluster
networking.k8s.io/v1beta1
  ipaddresses IPAddress cluster ip
  servicecidrs ServiceCIDR cluster
policy/v1
  poddisruptionbudgets PodDisruptionBudget namespaced pdb
rbac.authorization.k8s.io/v1
  clusterrolebindings ClusterRoleBinding cluster
  clusterroles ClusterRole cluster
  rolebindings RoleBinding namespaced
  roles Role namespaced
storage.k8s.io/v1
  csidrivers CSIDriver cluster
  csinodes CSINode cluster
  csistoragecapacities CSIStorageCapacity namespaced
  storageclasses StorageClass cluster sc
  volumeattachments VolumeAttachment cluster
  volumeattributesclasses VolumeAttributesClass cluster vac
storage.k8s.io/v1beta1
  volumeattributesclasses VolumeAttributesClass cluster vac
admissionregistration.k8s.io/v1
  mutatingadmissionpolicies MutatingAdmissionPolicy cluster
  mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding cluster
  mutatingwebhookconfigurations MutatingWebhookConfiguration cluster
  validatingadmissionpolicies ValidatingAdmissionPolicy cluster
  validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster
  validatingwebhookconfigurations ValidatingWebhookConfiguration cluster
admissionregistration.k8s.io/v1beta1
  mutatingadmissionpolicies MutatingAdmissionPolicy cluster
  mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding cluster
admissionregistration.k8s.io/v1alpha1
  mutatingadmissionpolicies MutatingAdmissionPolicy cluster
  mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding cluster
apiextensions.k8s.io/v1
  customresourcedefinitions CustomResourceDefinition cluster crd,crds
scheduling.k8s.io/v1
  priorityclasses PriorityClass cluster pc
scheduling.k8s.io/v1alpha2
  podgroups PodGroup namespaced
  workloads Workload namespaced
coordination.k8s.io/v1
  leases Lease namespaced
coordination.k8s.io/v1beta1
  leasecandidates LeaseCandidate namespaced
coordination.k8s.io/v1alpha2
  leasecandidates LeaseCandidate namespaced
node.k8s.io/v1
  runtimeclasses RuntimeClass cluster
discovery.k8s.io/v1
  endpointslices EndpointSlice namespaced
resource.k8s.io/v1
  deviceclasses DeviceClass cluster
  resourceclaims ResourceClaim namespaced
  resourceclaimtemplates ResourceClaimTemplate namespaced
  resourceslices ResourceSlice cluster
resource.k8s.io/v1beta2
  deviceclasses DeviceClass cluster
  devicetaintrules DeviceTaintRule cluster
  resourceclaims ResourceClaim namespaced
  resourceclaimtemplates ResourceClaimTemplate namespaced
  resourceslices ResourceSlice cluster
resource.k8s.io/v1beta1
  deviceclasses DeviceClass cluster
  resourceclaims ResourceClaim namespaced
  resourceclaimtemplates ResourceClaimTemplate namespaced
  resourceslices ResourceSlice cluster
resource.k8s.io/v1alpha3
  devicetaintrules DeviceTaintRule cluster
  resourcepoolstatusrequests ResourcePoolStatusRequest cluster
flowcontrol.apiserver.k8s.io/v1
  flowschemas FlowSchema cluster
  prioritylevelconfigurations PriorityLevelConfiguration cluster
internal.apiserver.k8s.io/v1alpha1
  storageversions StorageVersion cluster
storagemigration.k8s.io/v1beta1
  storageversionmigrations StorageVersionMigration cluster
"""
"""Below each API version its resources: plural, Kind, scope, short names or "-", and "unwatchable"
where list or watch is missing. The singular is the Kind in lower case. The order of groups, and of
versions in a group, is the server's order of preference."""


def _rows() -> Iterator[ServedResource]:
    group = version = ""
    for row in _TABLE.strip().splitlines():
        if not row.startswith(" "):
            group, _, version = row.rpartition("/")
            continue
        plural, kind, scope, *rest = row.split()
        resource = Resource(group, version, plural, kind, scope == "namespaced")
        shorts = tuple(rest[0].split(",")) if rest and rest[0] != "-" else ()
        yield ServedResource(resource, kind.lower(), shorts, watchable="unwatchable" not in rest)


BUILTIN: tuple[ServedResource, ...] = tuple(_rows())
"""Every built-in resource in every version served, preferred ones first."""

GROUPS: frozenset[str] = frozenset(entry.resource.group for entry in BUILTIN)
"""The groups of the table; "" is the core group."""

_FORMER_GROUPS = frozenset({"auditregistration.k8s.io", "extensions", "settings.k8s.io"})
"""Those of earlier releases. Source: kubernetes v1.8 to v1.21, pkg/apis."""


def is_own_group(group: str) -> bool:
    """Whether Kubernetes itself serves, or served, the group: no CRD and no aggregated API does.
    The group of a CRD has a dot. Source: apiextensions-apiserver, validation.go."""
    return "." not in group or group in GROUPS or group in _FORMER_GROUPS


def resolve(name: ResourceName) -> tuple[ServedResource, ...]:
    """The built-in resources that `name` can mean, preferred first, one version of each; for a
    wildcard every watchable one of its group."""
    found: dict[tuple[str, str], ServedResource] = {}
    for entry in BUILTIN:
        resource = entry.resource
        if name.group is not None and resource.group != name.group:
            continue
        if name.version and resource.version != name.version:
            continue
        if (name.wildcard and entry.watchable) or (not name.wildcard and entry.called(name.name)):
            found.setdefault((resource.group, resource.plural), entry)
    return tuple(found.values())


def served_in(called: str) -> tuple[ServedResource, ...]:
    """Every built-in resource of that name, in each version that is served."""
    return tuple(entry for entry in BUILTIN if entry.called(called))


def known_names() -> list[str]:
    """Every plural, singular and short name of the table, for "did you mean"."""
    names: dict[str, None] = {}
    for entry in BUILTIN:
        names.update(dict.fromkeys((entry.resource.plural, entry.singular, *entry.short_names)))
    return list(names)
