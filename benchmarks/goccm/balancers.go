package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	brightbox "github.com/brightbox/gobrightbox/v2"
	"github.com/brightbox/gobrightbox/v2/enums/cloudipstatus"
	"github.com/brightbox/gobrightbox/v2/enums/loadbalancerstatus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Load balancers: each call lists all collections of the account, as the original does.

func (c *cloud) GetLoadBalancerName(_ context.Context, cluster string, service *v1.Service) string {
	return service.Name + "." + service.Namespace + "." + cluster
}

func (c *cloud) GetLoadBalancer(
	ctx context.Context, cluster string, service *v1.Service,
) (*v1.LoadBalancerStatus, bool, error) {
	found, err := c.balancer(ctx, c.GetLoadBalancerName(ctx, cluster, service))
	return status(found), found != nil, err
}

func (c *cloud) UpdateLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) error {
	_, err := c.EnsureLoadBalancer(ctx, cluster, service, nodes)
	return err
}

func (c *cloud) EnsureLoadBalancer(
	ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node,
) (*v1.LoadBalancerStatus, error) {
	name := c.GetLoadBalancerName(ctx, cluster, service)
	address, err := c.address(ctx, name, service)
	if err != nil {
		return nil, err
	}
	has, err := c.balancer(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := c.open(ctx, name, service, nodes); err != nil {
		return nil, err
	}
	wanted := wantedBalancer(name, service, nodes, address)
	if has == nil {
		has, err = c.api.CreateLoadBalancer(ctx, wanted)
	} else if differs(has, wanted) {
		wanted.ID = has.ID
		has, err = c.api.UpdateLoadBalancer(ctx, wanted)
	}
	if err != nil {
		return nil, err
	}
	if address.Status != cloudipstatus.Mapped {
		to := brightbox.CloudIPAttachment{Destination: has.ID}
		if _, err := c.api.MapCloudIP(ctx, address.ID, to); err != nil {
			return nil, err
		}
	}
	for _, each := range has.CloudIPs {
		if each.ID != address.ID {
			if _, err := c.api.UnMapCloudIP(ctx, each.ID); err != nil {
				return nil, err
			}
		}
	}
	if err := c.release(ctx, name, address.ID); err != nil {
		return nil, err
	}
	if has, err = c.api.LoadBalancer(ctx, has.ID); err != nil {
		return nil, err
	}
	if !alive(has) || !slices.ContainsFunc(has.CloudIPs, func(ip brightbox.CloudIP) bool { return ip.ID == address.ID }) {
		return nil, fmt.Errorf("%s is not ready yet", has.ID)
	}
	if has.Acme != nil {
		for _, each := range has.Acme.Domains {
			if each.Status != "valid" {
				return nil, fmt.Errorf("%s: the certificate of %s is %s", has.ID, each.Identifier, each.Status)
			}
		}
	}
	return status(has), nil
}

func (c *cloud) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, service *v1.Service) error {
	name := c.GetLoadBalancerName(ctx, cluster, service)
	groups, err := c.api.ServerGroups(ctx)
	if err != nil {
		return err
	}
	if group := named(groups, name, func(g brightbox.ServerGroup) string { return g.Name }); group != nil {
		if err := c.members(ctx, group, nil); err != nil {
			return err
		}
		if _, err := c.api.DestroyServerGroup(ctx, group.ID); err != nil {
			return err
		}
	}
	policies, err := c.api.FirewallPolicies(ctx)
	if err != nil {
		return err
	}
	if policy := named(policies, name, func(p brightbox.FirewallPolicy) string { return p.Name }); policy != nil {
		if _, err := c.api.DestroyFirewallPolicy(ctx, policy.ID); err != nil {
			return err
		}
	}
	has, err := c.balancer(ctx, name)
	if err != nil {
		return err
	}
	if has != nil {
		if _, err := c.api.DestroyLoadBalancer(ctx, has.ID); err != nil {
			return err
		}
	}
	return c.release(ctx, name, "")
}

// balancer returns the living balancer of a name, or nil.
func (c *cloud) balancer(ctx context.Context, name string) (*brightbox.LoadBalancer, error) {
	all, err := c.api.LoadBalancers(ctx)
	all = slices.DeleteFunc(all, func(each brightbox.LoadBalancer) bool { return !alive(&each) })
	return named(all, name, func(each brightbox.LoadBalancer) string { return each.Name }), err
}

// address returns the Cloud IP of the annotation, of spec.loadBalancerIP, of this name, or a new one.
func (c *cloud) address(ctx context.Context, name string, service *v1.Service) (*brightbox.CloudIP, error) {
	if id := service.Annotations[annotation+"cloudip-allocations"]; id != "" {
		return c.api.CloudIP(ctx, id)
	}
	all, err := c.api.CloudIPs(ctx)
	if err != nil {
		return nil, err
	}
	wanted := net.ParseIP(service.Spec.LoadBalancerIP)
	for i, each := range all {
		ours := each.Name == name || (each.LoadBalancer != nil && each.LoadBalancer.Name == name)
		if wanted != nil {
			ours = wanted.Equal(net.ParseIP(each.PublicIPv4)) || wanted.Equal(net.ParseIP(each.PublicIPv6))
		}
		if ours {
			return &all[i], nil
		}
	}
	if wanted != nil {
		return nil, fmt.Errorf("no Cloud IP %s", wanted)
	}
	return c.api.CreateCloudIP(ctx, brightbox.CloudIPOptions{Name: &name})
}

// release deletes all Cloud IPs of a name but one; a mapped one is tried again.
func (c *cloud) release(ctx context.Context, name, kept string) error {
	pauses := wait.Backoff{Duration: time.Second, Factor: 1.2, Steps: 5}
	return wait.ExponentialBackoff(pauses, func() (bool, error) {
		all, err := c.api.CloudIPs(ctx)
		if err != nil {
			return false, err
		}
		for _, each := range all {
			if each.Name == name && each.ID != kept {
				if _, err := c.api.DestroyCloudIP(ctx, each.ID); err != nil {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

// open lets the balancer reach the nodes: a server group, its policy, and the policy's rule.
func (c *cloud) open(ctx context.Context, name string, service *v1.Service, nodes []*v1.Node) error {
	groups, err := c.api.ServerGroups(ctx)
	if err != nil {
		return err
	}
	group := named(groups, name, func(each brightbox.ServerGroup) string { return each.Name })
	if group == nil {
		if group, err = c.api.CreateServerGroup(ctx, brightbox.ServerGroupOptions{Name: &name}); err != nil {
			return err
		}
	}
	if err := c.members(ctx, group, servers(nodes)); err != nil {
		return err
	}
	policies, err := c.api.FirewallPolicies(ctx)
	if err != nil {
		return err
	}
	policy := named(policies, name, func(each brightbox.FirewallPolicy) string { return each.Name })
	if policy == nil {
		attached := &brightbox.FirewallPolicyAttachment{ServerGroup: group.ID}
		policy, err = c.api.CreateFirewallPolicy(
			ctx, brightbox.FirewallPolicyOptions{Name: &name, FirewallPolicyAttachment: attached})
		if err != nil {
			return err
		}
	}
	rule := wantedRule(policy, service)
	switch {
	case len(policy.Rules) == 0:
		_, err = c.api.CreateFirewallRule(ctx, rule)
	case policy.Rules[0].DestinationPort != *rule.DestinationPort || policy.Rules[0].Source != *rule.Source ||
		policy.Rules[0].Protocol != *rule.Protocol || policy.Rules[0].Description != *rule.Description:
		rule.ID = policy.Rules[0].ID
		_, err = c.api.UpdateFirewallRule(ctx, rule)
	}
	return err
}

// members makes the servers the only ones of a group.
func (c *cloud) members(ctx context.Context, group *brightbox.ServerGroup, servers []string) error {
	var joining, leaving brightbox.ServerGroupMemberList
	has := map[string]bool{}
	for _, each := range group.Servers {
		has[each.ID] = true
		if !slices.Contains(servers, each.ID) {
			leaving.Servers = append(leaving.Servers, brightbox.ServerGroupMember{Server: each.ID})
		}
	}
	for _, id := range servers {
		if !has[id] {
			joining.Servers = append(joining.Servers, brightbox.ServerGroupMember{Server: id})
		}
	}
	if len(joining.Servers) > 0 {
		if _, err := c.api.AddServersToServerGroup(ctx, group.ID, joining); err != nil {
			return err
		}
	}
	if len(leaving.Servers) > 0 {
		if _, err := c.api.RemoveServersFromServerGroup(ctx, group.ID, leaving); err != nil {
			return err
		}
	}
	return nil
}

func alive(each *brightbox.LoadBalancer) bool {
	return each.Status == loadbalancerstatus.Active || each.Status == loadbalancerstatus.Creating
}

// named returns the first object of a name, or nil; outer blanks and the suffix of other tools do not count.
func named[T any](all []T, name string, of func(T) string) *T {
	for i := range all {
		if strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(of(all[i])), "#type:container")) == name {
			return &all[i]
		}
	}
	return nil
}

func status(balancer *brightbox.LoadBalancer) *v1.LoadBalancerStatus {
	found := &v1.LoadBalancerStatus{}
	if balancer == nil {
		return found
	}
	for _, address := range balancer.CloudIPs {
		for _, host := range []string{address.ReverseDNS, address.Fqdn} {
			if host != "" {
				found.Ingress = append(found.Ingress, v1.LoadBalancerIngress{Hostname: host})
			}
		}
	}
	return found
}
