// Command crd-check prints the errors that the API server of this module's version reports for a
// CustomResourceDefinition, such as rules that do not compile or exceed the cost budget.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var given v1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &given); err != nil {
		return err
	}
	v1.SetObjectDefaults_CustomResourceDefinition(&given)
	var crd apiextensions.CustomResourceDefinition
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&given, &crd, nil); err != nil {
		return err
	}
	for _, version := range given.Spec.Versions { // set by the server
		crd.Status.StoredVersions = append(crd.Status.StoredVersions, version.Name)
	}
	return validation.ValidateCustomResourceDefinition(context.Background(), &crd).ToAggregate()
}
