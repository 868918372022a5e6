package operator

import "sigs.k8s.io/karpenter/pkg/events"

// RelativeEvents returns a recorder that publishes events without currency.
func RelativeEvents(r events.Recorder) events.Recorder { return relativeEvents{r} }
