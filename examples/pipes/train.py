"""Federated averaging of a small CNN, in the clear and secured: `python examples/pipes/train.py`."""

from multiprocessing import Pipe, Process

import torch
from safetensors.torch import load, save
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

CLIENTS, ROUNDS, TEST_ROWS = 3, 5, 360
DIGITS = load_digits()
X, Y = torch.tensor(DIGITS.images[:, None] / 16, dtype=torch.float32), torch.tensor(DIGITS.target)
torch.set_num_threads(1)


def network():
    torch.manual_seed(0)
    layers = []
    for inside, outside in ((1, 16), (16, 32)):
        layers += [torch.nn.Conv2d(inside, outside, 3, padding=1), torch.nn.BatchNorm2d(outside)]
        layers += [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128, 10))


TERMS = SumTerms.like(network().state_dict(), clients=CLIENTS, defense=secure_aggregation(), largest_weight=len(Y))


def start(number):
    net, part = network(), slice(TEST_ROWS + number, None, CLIENTS)
    order = torch.Generator().manual_seed(number)
    loader = DataLoader(TensorDataset(X[part], Y[part]), batch_size=32, shuffle=True, generator=order)
    return net, torch.optim.Adam(net.parameters(), 0.003), loader


def train(net, adam, loader):
    for x, y in loader:
        adam.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        adam.step()


def plain_client(pipe, number):
    net, adam, loader = start(number)
    for _ in range(ROUNDS):
        model = load(pipe.recv_bytes())
        net.load_state_dict(model)
        train(net, adam, loader)
        pipe.send_bytes(save(net.state_dict()))


def secured_client(pipe, number):
    net, adam, loader = start(number)
    party = SumClient(TERMS, number)
    for _ in range(ROUNDS):
        model = load(pipe.recv_bytes())
        net.load_state_dict(model)
        train(net, adam, loader)
        while request := pipe.recv_bytes():
            pipe.send_bytes(party.receive(request, net.state_dict(), weight=len(loader.dataset), base=model))


def plain_server(pipes, net):
    for _ in range(ROUNDS):
        send(pipes, dict.fromkeys(range(CLIENTS), save(net.state_dict())))
        updates = [load(pipe.recv_bytes()) for pipe in pipes]
        net.load_state_dict({name: sum(update[name] for update in updates) / CLIENTS for name in updates[0]})


def secured_server(pipes, net):
    party = SumServer(TERMS)
    for _ in range(ROUNDS):
        send(pipes, dict.fromkeys(range(CLIENTS), save(net.state_dict())))
        result = secure_sum(party, pipes, net.state_dict())
        net.load_state_dict(result.like(net.state_dict()))


def secure_sum(party, pipes, model):
    party.open(model)
    while party.result is None:
        asked = dict(party.outgoing)
        send(pipes, asked)
        party.receive({number: pipes[number].recv_bytes() for number in asked})
    send(pipes, dict.fromkeys(range(CLIENTS), b""))  # the sum is made
    return party.result


def send(pipes, messages):
    for number, message in messages.items():
        pipes[number].send_bytes(message)


def run(server, client):
    pairs = [Pipe() for _ in range(CLIENTS)]
    for number, (_, there) in enumerate(pairs):
        Process(target=client, args=(there, number)).start()
    server([here for here, _ in pairs], net := network())
    return (net.eval()(X[:TEST_ROWS]).argmax(1) == Y[:TEST_ROWS]).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy plain {run(plain_server, plain_client):.4f}", flush=True)
    print(f"accuracy secured {run(secured_server, secured_client):.4f}")
