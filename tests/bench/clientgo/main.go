// client-go + franz-go: a shared informer over any resource, which publishes what its handler is called with: the shortest program that a
// Go developer would write instead of the relay. It reads KUBECONFIG, BOOTSTRAP and TOPIC.
//
// It cuts managedFields, and keys by namespace/name; a delete has a null value. All else is the default of both libraries, but for zstd.
// What it has published is known to nobody after a restart: it publishes all there is, and deletes of the time between are lost.
package main

import (
	"context"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(err)
	cluster, err := dynamic.NewForConfig(config)
	check(err)
	kafka, err := kgo.NewClient(kgo.SeedBrokers(os.Getenv("BOOTSTRAP")), kgo.DefaultProduceTopic(os.Getenv("TOPIC")),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	check(err)
	produce := func(key string, value []byte) {
		kafka.Produce(context.Background(), &kgo.Record{Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) { check(err) })
	}
	publish := func(object any) {
		pod := object.(*unstructured.Unstructured)
		value, err := pod.MarshalJSON()
		check(err)
		produce(pod.GetNamespace()+"/"+pod.GetName(), value)
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	informer := dynamicinformer.NewDynamicSharedInformerFactory(cluster, 0).ForResource(pods).Informer()
	check(informer.SetTransform(func(object any) (any, error) {
		if pod, is := object.(*unstructured.Unstructured); is {
			pod.SetManagedFields(nil)
		}
		return object, nil
	}))
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    publish,
		UpdateFunc: func(_, object any) { publish(object) },
		DeleteFunc: func(object any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
			check(err)
			produce(key, nil)
		},
	})
	check(err)
	informer.RunWithContext(context.Background())
}
