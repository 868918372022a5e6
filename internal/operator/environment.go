package operator

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// environmentPrefix begins every environment twin of a key.
const environmentPrefix = "NUMAFORM_"

// applyEnvironment sets each scalar key from its environment twin: the key's path
// in upper case, joined by _, with list positions from 0, such as
// NUMAFORM_CLUSTERS_0_TOKEN_SECRET. Other variables of that prefix are left alone:
// Kubernetes sets some of its own for a Service named numaform.
func applyEnvironment(config *Config, environ []string) error {
	values := map[string]string{}
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, environmentPrefix) {
			values[strings.TrimPrefix(name, environmentPrefix)] = value
		}
	}
	return setFields(reflect.ValueOf(config).Elem(), "", values)
}

// setFields sets the fields of a struct whose twins stand in values.
func setFields(target reflect.Value, path string, values map[string]string) error {
	for i := range target.NumField() {
		key := strings.ToUpper(target.Type().Field(i).Tag.Get("yaml"))
		if err := setValue(target.Field(i), path+key, values); err != nil {
			return err
		}
	}
	return nil
}

func setValue(field reflect.Value, name string, values map[string]string) error {
	switch field.Kind() {
	case reflect.Struct:
		return setFields(field, name+"_", values)
	case reflect.Slice:
		if field.Type().Elem().Kind() == reflect.Struct {
			for i := range field.Len() {
				if err := setFields(field.Index(i), name+"_"+strconv.Itoa(i)+"_", values); err != nil {
					return err
				}
			}
			return nil
		}
	case reflect.Map:
		return nil
	}
	text, ok := values[name]
	if !ok {
		return nil
	}
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	if err := parseInto(field, text); err != nil {
		return fmt.Errorf("environment variable %s%s: %w", environmentPrefix, name, err)
	}
	return nil
}

func parseInto(field reflect.Value, text string) error {
	switch field.Interface().(type) {
	case time.Duration:
		value, err := time.ParseDuration(text)
		field.SetInt(int64(value))
		return err
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(text)
	case reflect.Bool:
		value, err := strconv.ParseBool(text)
		field.SetBool(value)
		return err
	case reflect.Int:
		value, err := strconv.ParseInt(text, 10, 64)
		field.SetInt(value)
		return err
	case reflect.Slice:
		list := reflect.MakeSlice(field.Type(), 0, 1)
		for part := range strings.SplitSeq(text, ",") {
			list = reflect.Append(list, reflect.ValueOf(part).Convert(field.Type().Elem()))
		}
		field.Set(list)
	}
	return nil
}
