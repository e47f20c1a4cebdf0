"""Runs nodes of Ray on this machine, as many as the argument says beside the head. Reads commands as lists in JSON, a line each, and
answers each with a line of JSON; ends the nodes with its input.

Runs in the environment that ray_cluster.py makes.
"""

import json
import sys

import ray
from ray.cluster_utils import Cluster


def main():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})

    def add():
        return cluster.add_node(num_cpus=2, resources={"nereid": 2})

    nodes = [add() for _ in range(int(sys.argv[1]))]
    ray.init(address=cluster.address, namespace="nereid", log_to_driver=False, logging_level="ERROR")

    def answer(value):
        # Ray prints other lines.
        print("answer", json.dumps(value), flush=True)

    answer(cluster.address)
    for line in sys.stdin:
        command, *rest = json.loads(line)
        if command == "kill node":
            (node,) = [node for node in nodes if node.node_id == rest[0]]
            nodes.remove(node)
            cluster.remove_node(node, allow_graceful=False)
        elif command == "add node":
            nodes.append(add())
        elif command == "kill keeper":
            ray.kill(ray.get_actor("nereid"), no_restart=False)
        answer("done")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
