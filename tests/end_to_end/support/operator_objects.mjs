// Checks objects of KEDA and Prometheus's operator: reads them as a list in JSON, and writes the problems.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";

const kinds = { ScaledObject, ServiceMonitor };
const problems = [];
for (const item of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    new kinds[item.kind](item).validate();
  } catch (error) {
    problems.push(`${item.kind}: ${error.message}`);
  }
}
console.log(JSON.stringify(problems));
