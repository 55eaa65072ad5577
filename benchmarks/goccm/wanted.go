package main

import (
	"encoding"
	"slices"
	"strconv"
	"strings"

	brightbox "github.com/brightbox/gobrightbox/v2"
	"github.com/brightbox/gobrightbox/v2/enums/healthchecktype"
	"github.com/brightbox/gobrightbox/v2/enums/listenerprotocol"
	v1 "k8s.io/api/core/v1"
)

const (
	annotation = "service.beta.kubernetes.io/brightbox-load-balancer-"
	// The only key of the interval that the original reads.
	interval = "service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval"
)

// wantedBalancer is what the annotations of a Service ask for.
func wantedBalancer(
	name string, service *v1.Service, nodes []*v1.Node, address *brightbox.CloudIP,
) brightbox.LoadBalancerOptions {
	redirect := false
	found := brightbox.LoadBalancerOptions{Name: &name, Healthcheck: check(service), HTTPSRedirect: &redirect}
	for _, id := range servers(nodes) {
		found.Nodes = append(found.Nodes, brightbox.LoadBalancerNode{Node: id})
	}
	of(service, "policy", &found.Policy)
	secure := strings.Split(service.Annotations[annotation+"ssl-ports"], ",")
	for _, port := range service.Spec.Ports {
		listener := brightbox.LoadBalancerListener{
			Protocol: protocol(service),
			In:       uint16(port.Port),
			Out:      uint16(port.NodePort),
			Timeout:  number(service, annotation+"listener-idle-timeout"),
		}
		of(service, "listener-proxy-protocol", &listener.ProxyProtocol)
		number := strconv.Itoa(int(port.Port))
		if listener.Protocol == listenerprotocol.Http &&
			(port.Port == 443 || slices.Contains(secure, number) || (port.Name != "" && slices.Contains(secure, port.Name))) {
			listener.Protocol = listenerprotocol.Https
		}
		redirect = redirect || listener.Protocol == listenerprotocol.Https
		found.Listeners = append(found.Listeners, listener)
	}
	if redirect {
		domains := strings.Split(service.Annotations[annotation+"ssl-domains"], ",")
		domains = append(domains, address.Fqdn, address.ReverseDNS)
		domains = slices.DeleteFunc(domains, func(each string) bool { return each == "" })
		slices.Sort(domains)
		domains = slices.Compact(domains)
		found.Domains = &domains
	}
	return found
}

func check(service *v1.Service) *brightbox.LoadBalancerHealthcheck {
	found := &brightbox.LoadBalancerHealthcheck{
		Type:          healthchecktype.Http,
		Port:          uint16(service.Spec.Ports[0].NodePort),
		Interval:      number(service, interval),
		Timeout:       number(service, annotation+"healthcheck-timeout"),
		ThresholdUp:   number(service, annotation+"healthcheck-healthy-threshold"),
		ThresholdDown: number(service, annotation+"healthcheck-unhealthy-threshold"),
		Request:       "/healthz",
	}
	local := service.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
	if port := service.Spec.HealthCheckNodePort; local && port != 0 {
		found.Port = uint16(port)
	} else if protocol(service) == listenerprotocol.Tcp {
		found.Type = healthchecktype.Tcp
	}
	of(service, "healthcheck-protocol", &found.Type)
	if path := service.Annotations[annotation+"healthcheck-request"]; path != "" {
		found.Request = path
	}
	if found.Type == healthchecktype.Tcp {
		found.Request = "/"
	}
	return found
}

func protocol(service *v1.Service) listenerprotocol.Enum {
	found := listenerprotocol.Http
	of(service, "listener-protocol", &found)
	return found
}

// differs compares only some fields, and lists in order, as the original does.
func differs(has *brightbox.LoadBalancer, wanted brightbox.LoadBalancerOptions) bool {
	ids := []brightbox.LoadBalancerNode{}
	for _, each := range has.Nodes {
		ids = append(ids, brightbox.LoadBalancerNode{Node: each.ID})
	}
	listeners := func(a, b brightbox.LoadBalancerListener) bool {
		if a.Timeout == 0 || b.Timeout == 0 {
			a.Timeout, b.Timeout = 0, 0
		}
		return a == b
	}
	var domains []string
	if has.Acme != nil {
		for _, each := range has.Acme.Domains {
			domains = append(domains, each.Identifier)
		}
		slices.Sort(domains)
	}
	return has.Name != *wanted.Name ||
		has.Healthcheck.Type != wanted.Healthcheck.Type ||
		has.Healthcheck.Port != wanted.Healthcheck.Port ||
		has.Healthcheck.Request != wanted.Healthcheck.Request ||
		!slices.Equal(ids, wanted.Nodes) ||
		!slices.EqualFunc(has.Listeners, wanted.Listeners, listeners) ||
		(wanted.Domains != nil && !slices.Equal(domains, *wanted.Domains))
}

// wantedRule opens the node ports to the addresses of the cloud's balancers.
func wantedRule(policy *brightbox.FirewallPolicy, service *v1.Service) brightbox.FirewallRuleOptions {
	var ports []string
	for _, port := range service.Spec.Ports {
		ports = append(ports, strconv.Itoa(int(port.NodePort)))
	}
	if port := service.Spec.HealthCheckNodePort; port != 0 {
		ports = append(ports, strconv.Itoa(int(port)))
	}
	protocol, source, opened := "tcp", "10.0.0.0/8", strings.Join(ports, ",")
	return brightbox.FirewallRuleOptions{
		FirewallPolicy: policy.ID, Protocol: &protocol, Source: &source, DestinationPort: &opened, Description: &policy.Name,
	}
}

// servers are the ids of the initialised nodes.
func servers(nodes []*v1.Node) (ids []string) {
	for _, node := range nodes {
		if node.Spec.ProviderID != "" {
			ids = append(ids, serverID(node))
		}
	}
	return ids
}

// of reads an annotation into an enumeration; an absent or unknown value changes nothing.
func of(service *v1.Service, suffix string, into encoding.TextUnmarshaler) {
	if value := service.Annotations[annotation+suffix]; value != "" {
		_ = into.UnmarshalText([]byte(value))
	}
}

// number reads an annotation; absent = 0, which is not sent.
func number(service *v1.Service, key string) uint {
	found, _ := strconv.ParseUint(service.Annotations[key], 10, 32)
	return uint(found)
}
