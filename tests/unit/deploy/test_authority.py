"""An authority issues, lists and revokes, and keeps its secrets to itself."""

import datetime as dt
import json
import stat

import pytest
from cryptography import x509

from hetero_rl.deploy.authority import Authority
from hetero_rl.deploy.certificates import issue_certificate, new_authority
from hetero_rl.errors import ConfigError
from hetero_rl.hub.callers import fingerprint, read_registry, token_digest
from hetero_rl.wire.bundle import read_bundle, write_bundle
from hetero_rl.wire.roles import Caller, Role, caller_of_uri


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "certs", days=30)


def certificate_of(bundle):
    return x509.load_pem_x509_certificate(bundle.certificate.encode())


def test_a_certificate_names_role_name_and_hosts(authority):
    bundle = authority.issue("hub", Role.HUB, ["hub.example", "10.0.0.7"], days=5)
    names = certificate_of(bundle).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["hetero-rl://hub/hub"]
    assert names.get_values_for_type(x509.DNSName) == ["hub.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]


def test_a_leaf_cannot_sign_and_the_authority_cannot_be_chained(authority):
    leaf = certificate_of(authority.issue("w", Role.WORKER, [], days=5))
    own = x509.load_pem_x509_certificate((authority.directory / "authority.pem").read_bytes())
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert own.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    leaf.verify_directly_issued_by(own)


def test_a_leaf_never_outlives_its_authority():
    authority = new_authority("a", days=3)
    leaf = issue_certificate(authority, Caller(Role.WORKER, "w"), [], days=90)
    assert leaf.not_after == authority.not_after


def test_the_registry_holds_digests_and_no_secret(authority):
    bundle = authority.issue("w", Role.WORKER, [], days=5)
    text = authority.registry.read_text()
    assert bundle.token not in text
    credential = read_registry(authority.registry)[fingerprint(bundle.certificate)]
    assert credential.token_sha256 == token_digest(bundle.token)
    assert credential.caller == Caller(Role.WORKER, "w")


def test_secret_files_belong_to_their_owner_alone(authority, tmp_path):
    path = tmp_path / "w.credentials"
    write_bundle(authority.issue("w", Role.WORKER, [], days=5), path)
    for secret in (path, authority.directory / "authority.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_bundle_is_read_back_as_it_was_written(authority, tmp_path):
    bundle = authority.issue("w", Role.WORKER, [], days=5)
    write_bundle(bundle, tmp_path / "w")
    assert read_bundle(tmp_path / "w") == bundle


def test_a_bundle_shows_no_secret_when_it_is_printed(authority):
    bundle = authority.issue("w", Role.WORKER, [], days=5)
    assert bundle.token not in repr(bundle)
    assert "PRIVATE" not in repr(bundle)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda fields: fields | {"format": "other/1"}, "no credentials bundle of the format"),
        (lambda fields: fields | {"extra": "x"}, "damaged credentials bundle"),
        (lambda fields: fields | {"role": "king"}, "damaged credentials bundle: 'king'"),
        (lambda fields: fields | {"token": 3}, "damaged credentials bundle"),
        (lambda fields: [fields], "no credentials bundle of the format"),
    ],
)
def test_a_damaged_bundle_is_refused(authority, tmp_path, change, problem):
    path = tmp_path / "w"
    write_bundle(authority.issue("w", Role.WORKER, [], days=5), path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=problem):
        read_bundle(path)


def test_a_bundle_that_has_ended_says_how_to_get_another(authority, tmp_path):
    path = tmp_path / "w"
    write_bundle(authority.issue("w", Role.WORKER, [], days=5), path)
    fields = json.loads(path.read_text())
    fields["not_after"] = (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).isoformat()
    path.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="hetero-rl certs issue w"):
        read_bundle(path)


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "é", "x" * 64])
def test_a_name_that_cannot_stand_in_a_certificate_is_refused(authority, name):
    with pytest.raises(ConfigError, match="cannot name credentials"):
        authority.issue(name, Role.WORKER, [], days=5)


def test_a_name_has_one_role_at_a_time(authority):
    authority.issue("w", Role.WORKER, [], days=5)
    with pytest.raises(ConfigError, match="has credentials as worker"):
        authority.issue("w", Role.OPERATOR, [], days=5)
    authority.revoke("w")
    authority.issue("w", Role.OPERATOR, [], days=5)


def test_a_rotation_revokes_all_but_the_newest(authority):
    old, new = (authority.issue("w", Role.WORKER, [], days=5) for _ in range(2))
    assert authority.revoke("w", keep_newest=True) == 1
    registry = read_registry(authority.registry)
    assert registry[fingerprint(old.certificate)].revoked
    assert not registry[fingerprint(new.certificate)].revoked


def test_revoking_an_unknown_name_lists_the_known_ones(authority):
    authority.issue("ascend-0", Role.WORKER, [], days=5)
    with pytest.raises(ConfigError, match="issued were: ascend-0"):
        authority.revoke("ascend-1")


def test_a_second_authority_never_replaces_the_first(authority):
    with pytest.raises(ConfigError, match="holds an authority already"):
        Authority.create(authority.directory, days=1)


@pytest.mark.parametrize(
    "uri", ["", "https://worker/a", "hetero-rl://worker/", "hetero-rl://king/a", "hetero-rl://worker"]
)
def test_other_names_in_a_certificate_name_no_caller(uri):
    assert caller_of_uri(uri) is None
