package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/wneessen/go-mail"
)

// mailTimeout limits each step of a conversation with a mail server. The context of the
// message limits all of it.
const mailTimeout = 20 * time.Second

// sendMail sends a message as a mail in plain text.
func (t *Target) sendMail(ctx context.Context, m *Message) error {
	letter := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := letter.From(t.From); err != nil {
		return errors.New("from: must be a mail address")
	}
	if err := letter.To(t.To...); err != nil {
		return errors.New("to: must contain mail addresses")
	}
	letter.Subject(m.Subject())
	letter.SetDate()
	letter.SetMessageID()
	letter.SetGenHeader("Auto-Submitted", "auto-generated") // no reply of an absent reader
	letter.SetBodyString(mail.TypeTextPlain, m.Text)
	client, stop, err := t.mailClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return mailError(client.DialAndSendWithContext(ctx, letter))
}

// probeMail connects to the mail server and logs in.
func (t *Target) probeMail(ctx context.Context) error {
	client, stop, err := t.mailClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := client.DialWithContext(ctx); err != nil {
		return mailError(err)
	}
	return client.Close()
}

func mailError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("talking to the mail server: %w", err)
}

// mailClient returns a client, and a function that closes its connection. The connection is
// also closed when ctx ends, because the client sets its own deadlines, which a slow server
// can extend.
func (t *Target) mailClient(ctx context.Context) (client *mail.Client, stop func(), err error) {
	host, port, err := t.server()
	if err != nil {
		return nil, nil, fmt.Errorf("server: %w", err)
	}
	trust, err := t.trust(host)
	if err != nil {
		return nil, nil, err
	}
	password, err := secretOf("password", t.Password, t.PasswordFile)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop = context.WithCancel(ctx)
	dial := func(dialing context.Context, network, address string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = connection.Close() })
		if t.TLS != Implicit {
			return connection, nil
		}
		encrypted := tls.Client(connection, trust)
		return encrypted, encrypted.HandshakeContext(dialing)
	}
	options := []mail.Option{
		mail.WithPort(port), mail.WithTimeout(mailTimeout), mail.WithTLSConfig(trust), mail.WithDialContextFunc(dial),
		mail.WithHELO(t.From[strings.LastIndex(t.From, "@")+1:]),
	}
	switch t.TLS {
	case Implicit:
		options = append(options, mail.WithSSL())
	case NoTLS:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	default:
		options = append(options, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if t.Username != "" {
		// The last two send the password itself, and refuse to without TLS.
		options = append(options, mail.WithUsername(t.Username), mail.WithPassword(password), mail.WithOpportunisticSMTPAuth(
			mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1, mail.SMTPAuthPlain, mail.SMTPAuthLogin,
		))
	}
	if client, err = mail.NewClient(host, options...); err != nil {
		stop()
		return nil, nil, fmt.Errorf("server: %w", err)
	}
	return client, stop, nil
}
