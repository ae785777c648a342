"""SubjectAccessReview: asking the API server whether somebody has a right. Creating one stores nothing."""

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class AccessReviewStatus(Struct, frozen=True, kw_only=True):
    """Without `allowed`, no role grants it; that an authorizer denied it expressly makes no difference here."""

    allowed: bool = False


class SubjectAccessReview(Struct, frozen=True, kw_only=True):
    """The answer; the question is written as a document."""

    metadata: ObjectMeta = ObjectMeta()
    status: AccessReviewStatus = AccessReviewStatus()


SUBJECT_ACCESS_REVIEWS: Resource[SubjectAccessReview] = Resource(
    *("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"),
    namespaced=False,
    type=SubjectAccessReview,
)
