// gocopy: what a Go engineer would write to copy the endpoints of one Service: an informer on its
// EndpointSlices, and one PUT of the copy for each that changed. No election, no guard, no retries.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const managedBy = "gocopy"

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	namespace := flag.String("namespace", "edge", "")
	source := flag.String("source", "source", "")
	target := flag.String("target", "copy", "")
	port := flag.Int("port", 6443, "")
	flag.Parse()
	rc, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		panic(err)
	}
	rc.QPS, rc.Burst = 10000, 10000
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client := kubernetes.NewForConfigOrDie(rc)
	slices := client.DiscoveryV1().EndpointSlices(*namespace)
	ctx := context.Background()
	number, name, protocol := int32(*port), "https", discoveryv1.EndpointPort{}.Protocol
	written := map[string]*discoveryv1.EndpointSlice{}
	// The handlers of an informer are called one after the other: nothing here needs a lock.
	publish := func(from *discoveryv1.EndpointSlice) {
		next := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: *target + "-" + from.Name, Namespace: *namespace,
				Labels: map[string]string{
					discoveryv1.LabelServiceName: *target, discoveryv1.LabelManagedBy: managedBy,
				},
			},
			AddressType: from.AddressType,
			Endpoints:   from.Endpoints,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: protocol}},
		}
		var err error
		if before := written[from.Name]; before != nil {
			next.ResourceVersion = before.ResourceVersion
			next, err = slices.Update(ctx, next, metav1.UpdateOptions{})
		} else {
			next, err = slices.Create(ctx, next, metav1.CreateOptions{})
		}
		if err != nil {
			panic(err)
		}
		written[from.Name] = next
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 10*time.Minute,
		informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + "=" + *source
		}))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(now any) { publish(now.(*discoveryv1.EndpointSlice)) },
		UpdateFunc: func(before, now any) {
			if before.(*discoveryv1.EndpointSlice).ResourceVersion != now.(*discoveryv1.EndpointSlice).ResourceVersion {
				publish(now.(*discoveryv1.EndpointSlice))
			}
		},
	})
	if err != nil {
		panic(err)
	}
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	fmt.Println("synced")
	select {}
}
