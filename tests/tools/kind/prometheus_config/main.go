// Command prometheus-config reads a ServiceMonitor and a PodMonitor from standard input, as a JSON
// object with the keys "service" and "pod", and writes the configuration that the Prometheus
// operator generates from them.
package main

import (
	"encoding/json"
	"log"
	"os"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus-operator/prometheus-operator/pkg/assets"
	"github.com/prometheus-operator/prometheus-operator/pkg/prometheus"
	"k8s.io/client-go/kubernetes/fake"
)

type monitors struct {
	Service monitoringv1.ServiceMonitor `json:"service"`
	Pod     monitoringv1.PodMonitor     `json:"pod"`
	// Overrides are fields of the Prometheus resource, such as overrideHonorLabels.
	Overrides monitoringv1.CommonPrometheusFields `json:"overrides"`
}

func main() {
	log.SetFlags(0)
	var input monitors
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&input); err != nil {
		log.Fatal(err)
	}
	server := &monitoringv1.Prometheus{}
	server.Name, server.Namespace = "tested", "monitoring"
	server.Spec.CommonPrometheusFields = input.Overrides
	server.Spec.ScrapeInterval, server.Spec.EvaluationInterval = "30s", "30s" // the API server's defaults
	generator, err := prometheus.NewConfigGenerator(nil, server)
	if err != nil {
		log.Fatal(err)
	}
	store := assets.NewStoreBuilder(fake.NewClientset().CoreV1(), fake.NewClientset().CoreV1())
	config, err := generator.GenerateServerConfiguration(
		server,
		map[string]*monitoringv1.ServiceMonitor{"service": &input.Service},
		map[string]*monitoringv1.PodMonitor{"pod": &input.Pod},
		nil, nil, store, nil, nil, nil, nil,
	)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := os.Stdout.Write(config); err != nil {
		log.Fatal(err)
	}
}
