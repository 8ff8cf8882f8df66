"""Domain-symmetric networks (Zhang et al., CVPR 2019): a classifier for each domain, and both of them as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from safda.knobs import knob
from safda.methods import register
from safda.methods.base import Batch, Method, Phase, RampedWeight, standing_still
from safda.nn.network import Network


@register("symnets")
class SymNets(Method):
    """C is the target's classifier; C_s, of its shape, the source's. Their 2K logits z = (z_s, z_t) are a third, C_st.

    The classifiers learn the source's labels, each by itself, and C_st to tell the domains apart: on the source
    −log Σ p_s, on the target −log Σ p_t, where p = softmax(z). F and B learn against that: of the source's labels,
    ½·CE(z, y) + ½·CE(z, y + K), so that C_st knows the class and not the domain; and at weight λ(t), of the target,
    ½·(−log Σ p_s − log Σ p_t) and the entropy of p_s + p_t. All of it is one optimizer step: the first losses stop at
    B's output, and the others pass through classifiers that stand still.

    Zhang, Tang, Jia, Tan: Domain-symmetric networks for adversarial domain adaptation. CVPR 2019. The authors'
    classifiers are single layers on the backbone; here they have C's shape, on B. λ(t) = 2/(1 + e^−10t) − 1, which is
    tanh(5t). SAF meets it in F's features and the target's classifier C, which is the one that answers.
    """

    paper = "Zhang et al., CVPR 2019"
    cost = 2.1

    @dataclass(frozen=True)
    class Knobs(RampedWeight):
        """Domain-symmetric networks."""

        weight: float = knob(
            1.0, "final weight λ of what F and B learn of the target", low=0.0, high=100.0, search=(0.1, 2.0, "log")
        )
        ramp: float = knob(5.0, "how fast λ rises: tanh(ramp · t/T)", low=0.0, high=1e6)

    knobs: Knobs

    def build(self, net: Network) -> None:
        """Make C_s."""
        self.source_classifier = net.new_classifier()

    def source_loss(self, batch: Batch) -> Tensor:
        """What the source teaches: classes to each classifier, to F and to B; its domain to both classifiers as one."""
        z_s, z_t = self._logits(batch, batch.source.embedding.detach())
        task = F.cross_entropy(z_s, batch.labels) + F.cross_entropy(z_t, batch.labels)
        joint = torch.cat(self._logits(batch, batch.source.embedding, learn=False), 1)
        category = F.cross_entropy(joint, batch.labels) + F.cross_entropy(joint, batch.labels + z_s.shape[1])
        return task - _log_share(z_s, z_t).mean() + category / 2

    def losses(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """What the target teaches: its domain to both classifiers as one; confusion and certainty to F and B."""
        z_s, z_t = self._logits(batch, batch.target.embedding.detach())
        tell = -_log_share(z_t, z_s).mean()
        z_s, z_t = self._logits(batch, batch.target.embedding, learn=False)
        confusion = -(_log_share(z_s, z_t) + _log_share(z_t, z_s)).mean() / 2
        log_class = torch.logaddexp(z_s, z_t).log_softmax(1)  # of the two probabilities of a class, added up
        entropy = -(log_class.exp() * log_class).sum(1).mean()
        batch.log(self, domain_confusion=confusion, entropy=entropy)
        return {"symnets_tell": tell, "symnets": self.knobs.at(batch.progress) * (confusion + entropy)}

    def _logits(self, batch: Batch, embedding: Tensor, learn: bool = True) -> list[Tensor]:
        """Logits of the source's and of the target's classifier, which learn from them or stand still."""
        classifiers = (self.source_classifier, batch.net.classifier)
        return [(each if learn else standing_still(each))(embedding) for each in classifiers]


def _log_share(these: Tensor, others: Tensor) -> Tensor:
    """log of the probability that falls to these logits, of both together."""
    return these.logsumexp(1) - torch.cat([these, others], 1).logsumexp(1)
