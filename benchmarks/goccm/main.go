// goccm: the yardstick of the cloud controller. It makes the requests of brightbox-cloud-controller-manager 1.35 with
// the controllers of k8s.io/cloud-provider and Brightbox's SDK, but shares no code with it. It leaves out what the
// original does beside its requests: checks of annotations, and a DNS lookup of each name of a balancer.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	brightbox "github.com/brightbox/gobrightbox/v2"
	"github.com/brightbox/gobrightbox/v2/clientcredentials"
	"github.com/brightbox/gobrightbox/v2/endpoint"
	"github.com/brightbox/gobrightbox/v2/enums/serverstatus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
)

const prefix = "brightbox://"

// cloud implements cloudprovider.Interface, InstancesV2 and LoadBalancer.
type cloud struct {
	api *brightbox.Client
}

func main() {
	cloudprovider.RegisterCloudProvider("brightbox", func(io.Reader) (cloudprovider.Interface, error) {
		api, err := brightbox.Connect(context.Background(), &clientcredentials.Config{
			ID:     os.Getenv("BRIGHTBOX_CLIENT"),
			Secret: os.Getenv("BRIGHTBOX_CLIENT_SECRET"),
			Config: endpoint.Config{BaseURL: os.Getenv("BRIGHTBOX_API_URL"), Scopes: endpoint.InfrastructureScope},
		})
		return &cloud{api}, err
	})
	settings, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		panic(err)
	}
	open := func(c *config.CompletedConfig) cloudprovider.Interface {
		found, err := cloudprovider.InitCloudProvider(c.ComponentConfig.KubeCloudShared.CloudProvider.Name, "")
		if err != nil || found == nil {
			panic(fmt.Sprint("--cloud-provider must be brightbox: ", err))
		}
		return found
	}
	command := app.NewCloudControllerManagerCommand(settings, open, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}

func (c *cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return c, true }
func (c *cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return c, true }
func (c *cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (c *cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c *cloud) Routes() (cloudprovider.Routes, bool)                              { return nil, false }
func (c *cloud) ProviderName() string                                              { return "brightbox" }
func (c *cloud) HasClusterID() bool                                                { return true }

// Nodes: one GET of the server for each question.

func (c *cloud) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	server, err := c.server(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	return err == nil && server.Status != serverstatus.Deleted && server.Status != serverstatus.Failed, err
}

func (c *cloud) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	server, err := c.server(ctx, node)
	return err == nil && (server.Status == serverstatus.Inactive || server.Status == serverstatus.Unavailable), err
}

func (c *cloud) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	server, err := c.server(ctx, node)
	if err != nil {
		return nil, err
	}
	var addresses []v1.NodeAddress
	add := func(kind v1.NodeAddressType, address string) {
		if address != "" {
			addresses = append(addresses, v1.NodeAddress{Type: kind, Address: address})
		}
	}
	add(v1.NodeHostName, server.Hostname)
	add(v1.NodeExternalDNS, server.Fqdn)
	for _, each := range server.Interfaces {
		add(v1.NodeExternalIP, each.IPv4Address)
		add(v1.NodeExternalIP, each.IPv6Address)
	}
	for _, each := range server.CloudIPs {
		add(v1.NodeExternalIP, each.PublicIP)
		add(v1.NodeExternalDNS, each.Fqdn)
	}
	zone := server.Zone.Handle
	return &cloudprovider.InstanceMetadata{
		ProviderID:    prefix + server.ID,
		InstanceType:  server.ServerType.Handle,
		NodeAddresses: addresses,
		Zone:          zone,
		Region:        zone[:max(0, strings.LastIndex(zone, "-"))],
	}, nil
}

func (c *cloud) server(ctx context.Context, node *v1.Node) (*brightbox.Server, error) {
	found, err := c.api.Server(ctx, serverID(node))
	var refused *brightbox.APIError
	if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
		return nil, cloudprovider.InstanceNotFound
	}
	return found, err
}

func serverID(node *v1.Node) string {
	if node.Spec.ProviderID == "" {
		return node.Name
	}
	return strings.TrimPrefix(node.Spec.ProviderID, prefix)
}
