"""FedAvg in Apple's pfl: its simulated back end in this process, on one thread.

Central evaluation on the pooled test data. pfl keeps the batches of a client from round to round
and does not shuffle them, which is less work than the others do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .peers import Marks
from .workloads import WORKLOADS, Workload


class Net(nn.Module):
    """The workload's module with the two methods that pfl asks for."""

    def __init__(self, work: Workload):
        super().__init__()
        self.net = work.module()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict:
        from pfl.metrics import Weighted

        out = self.net(x)
        hits = (out.argmax(1) == y).sum().item()
        loss = F.cross_entropy(out, y, reduction="sum").item()
        return {"accuracy": Weighted(hits, len(y)), "loss": Weighted(loss, len(y))}


def main(key: str, rounds: int) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, get_overall_value
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    work = WORKLOADS[key]
    marks = Marks()
    data = work.data()
    net = Net(work)
    clients = list(range(work.clients))
    users = [
        PyTorchTensorDataset((data.train_inputs[k], data.train_targets[k]), user_id=str(k))
        for k in clients
    ]
    training = FederatedDataset(lambda k: users[k], get_user_sampler("random", clients))
    pooled = PyTorchTensorDataset((data.test_inputs.flatten(0, 1), data.test_targets.flatten()))

    class Mark(TrainingProcessCallback):
        """Comes after the evaluation: the end of a round."""

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            found = {str(name): get_overall_value(value) for name, value in aggregate_metrics}
            # pfl evaluates before the first round, and after every round but the first
            if "Central val | accuracy" in found:
                marks.add(found["Central val | accuracy"], found["Central val | loss"])
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 2,
            train_cohort_size=work.heard,
            val_cohort_size=None,
        ),
        SimulatedBackend(training, training),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.method.lr, local_batch_size=work.batch
        ),
        callbacks=[
            CentralEvaluationCallback(pooled, NNEvalHyperParams(local_batch_size=1024)),
            Mark(),
        ],
        send_metrics_to_platform=False,
    )
    marks.write()
