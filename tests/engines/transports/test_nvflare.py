"""Sites over NVIDIA FLARE on this machine: kits, mutual TLS, jobs, processes that die."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import re
import socket
import ssl
import time
import tomllib
from pathlib import Path

import pytest

import four_sites
from intarsia.inference.predict import predict
from intarsia.privacy.keys.keyring import CkksSecret
from intarsia.privacy.keys.shared_key import SharedKey
from intarsia.privacy.secure_aggregation.ckks import CkksKeys
from intarsia.privacy.secure_aggregation.ckks_parameters import parameters
from key_folders import exchanged

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import Reference, intarsia
from intarsia.engines.transports import nvflare

pytestmark = pytest.mark.slow

CREDIT = Path(__file__).parents[3] / "examples" / "data" / "credit"
PAY = 'categorical = ["PAY_2", "PAY_3", "PAY_4"]'
TABLES = {  # the bank's customers lie with two sites
    "bank": f'id = "customer"\nlabel = "default"\n{PAY}\n',
    "branch": f'id = "customer"\nlabel = "default"\n{PAY}\n',
    "telecom": 'id = "customer"\nlabel = "default"\n'
    'categorical = ["SEX", "EDUCATION", "MARRIAGE", "PAY_0"]\n',
    "retailer": 'id = "customer"\nlabel = "default"\ncategorical = ["SEX", "PAY_5", "PAY_6"]\n',
}
EXPERIMENT = """
[experiment]
name = "calm"
tolerance = 1e-6
yardsticks = false
checkpoint_seconds = 0.0
[algorithm]
name = "hyfdca"
loss = "logistic"
regularisation = 1e-3
[labels]
task = "binary"
positive = "1"
[privacy]
mode = "masked"
key = "shared.key"
"""


def test_what_came_is_not_spelled_out_for_a_log() -> None:
    from nvflare.fuel.utils.buffer_list import ConsumableBufferList

    assert f"{ConsumableBufferList([bytes(1 << 20)] * 8)}" == "8 chunks"


def clients(folder):
    return "".join(
        f'[[client]]\nname = "{name}"\npath = "{folder}/{name}.csv"\n{table}'
        for name, table in TABLES.items()
    )


def write_tables(folder):
    for name in ("bank", "telecom", "retailer"):
        text = gzip.decompress((CREDIT / f"{name}.csv.gz").read_bytes()).decode()
        head, *rows = text.splitlines(keepends=True)
        if name == "bank":
            (folder / "branch.csv").write_text("".join([head, *rows[1::2]]))
            rows = rows[::2]
        (folder / f"{name}.csv").write_text("".join([head, *rows]))


@pytest.fixture(scope="module")
def credit(four):
    """Let the sites have the tables of credit; return the experiment and what it comes to."""
    folder = four.folder / "credit"
    folder.mkdir()
    write_tables(folder)
    exchanged(folder, TABLES, "credit")
    for name, table in TABLES.items():
        described = f'path = "{folder}/{name}.csv"\n{table}'
        path = four.kits / name / "local" / "site.toml"
        path.write_text(four_sites.site_toml(name, described, folder))
    path = folder / "calm.toml"
    path.write_text(EXPERIMENT + clients(folder))
    return path, Reference(tomllib.loads(path.read_text()), folder)


def test_hyfdca_on_credit_over_four_sites_comes_to_the_bits_of_one_process(four, credit):
    path, reference = credit
    intarsia("submit", four.kits / "server", path)
    four.finished("calm", 540)
    reference.same(four, "calm")
    assert reference.result.certificate.gap_relative <= 1e-6
    found = json.loads(intarsia("status", four.kits / "server", "--json").stdout)
    # other tests' runs may be there too
    assert [one["state"] for one in found["runs"] if one["name"] == "calm"] == ["finished"]


def test_hyfdca_under_ckks_over_four_sites_comes_to_the_bits_of_one_process(four, credit):
    pytest.importorskip("tenseal")
    path, _ = credit
    tree = tomllib.loads(path.read_text())
    tree["experiment"] |= {"name": "ciphered", "rounds": 4, "tolerance": 0.0}
    tree["privacy"] |= {"mode": "ckks", "key": str(path.parent / "shared.key")}
    shared = SharedKey.load(path.parent / "shared.key")
    fitting = parameters(2.0**22, len(TABLES))
    secret = CkksSecret(CkksKeys.create(fitting).secret_bytes(), "credit", shared.generation)
    for own in (path.parent, *(path.parent / "keys" / name for name in TABLES)):
        secret.store(own / "ckks.key")
    reference = Reference(tree, path.parent / "ciphered")
    (path.parent / "ciphered.toml").write_text(
        path.read_text()
        .replace('name = "calm"', 'name = "ciphered"\nrounds = 4')
        .replace("tolerance = 1e-6", "tolerance = 0.0")
        .replace('mode = "masked"', 'mode = "ckks"')
    )
    intarsia("submit", four.kits / "server", path.parent / "ciphered.toml")
    four.finished("ciphered", 540)
    reference.same(four, "ciphered", traffic=False)
    # masks take 8 bytes for a value, ciphertexts 48
    assert reference.result.bytes["up"] > 3 * 8 * 4 * 30_000


@pytest.mark.parametrize("algorithm", ["flic", "femam", "hyfem"])
def test_networks_over_four_sites_come_to_the_bits_of_one_process(four, algorithm):
    pytest.importorskip("torch")
    described = four.describe(algorithm, more="scales = true")
    tree = four_sites.tree(algorithm, described, four.tables)
    reference = Reference(tree, four.tables)
    four.submit(tree)
    four.finished(algorithm)
    reference.same(four, algorithm)
    for name in TABLES:
        table = four.tables / f"{name}.csv"
        own = predict(four.kits / name / "local" / "models" / algorithm, table)
        expected = predict(reference.folder, table, client=name)
        assert list(own.rows) == list(expected.rows)
    if algorithm == "hyfem":
        table = four.tables / "all.csv"
        four_sites.whole().to_csv(table, index=False)
        expected = predict(reference.folder, table, client="server")
        assert list(predict(four.out(algorithm), table).rows) == list(expected.rows)


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["a file of its own", "another class"])
def test_a_job_with_code_of_its_own_is_refused(four, tmp_path, kind):
    jobs = nvflare.Jobs(four.kits / "server" / "admin")
    connected(jobs)
    job = nvflare.write_job(tmp_path / "job", "code", tuple(TABLES), 4)
    if kind == "a file of its own":
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "own.py").write_text("print('here')")
    else:
        config = job / "app" / "config" / "config_fed_client.json"
        said = config.read_text()
        config.write_text(said.replace("intarsia.engines.nvflare.SiteSide", "os.getcwd"))
        assert config.read_text() != said
    found = jobs.submit(job)
    end = time.monotonic() + 60
    while not (status := jobs.status(found)).startswith("FINISHED"):
        assert time.monotonic() < end, status
        time.sleep(1)
    jobs.close()
    assert status != "FINISHED:COMPLETED"


def connected(jobs):
    """Wait until all sites are connected."""
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(ConnectionError):
            if jobs.sites().keys() == TABLES.keys():
                return
        assert time.monotonic() < end
        time.sleep(1)


def handshake(four, key, chain):
    """Return what a site hears that connects with a certificate, None if it is let in."""
    startup = four.kits / "bank" / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2"])  # else whoever connects is sent away
    try:
        with (
            socket.create_connection(("localhost", four.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as line,
        ):
            line.settimeout(5)
            # a refusal comes after the handshake of TLS 1.3; of who is let in the server waits
            # for a first word
            return None if line.recv(1) else "closed"
    except TimeoutError:
        return None
    except OSError as problem:
        return str(problem)


@pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning")
def test_a_certificate_of_nobody_or_of_yesterday_is_refused(four, tmp_path):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    jobs = nvflare.Jobs(four.kits / "server" / "admin")
    connected(jobs)
    jobs.close()
    startup = four.kits / "bank" / "startup"
    assert handshake(four, startup / "client.key", startup / "client.crt") is None
    state = four.kits / ".provisioning" / "kits" / "four" / "state" / "cert.json"
    known = json.loads(state.read_text())
    authority = serialization.load_pem_private_key(known["root_pri_key"].encode(), None)
    issuer = x509.load_pem_x509_certificate(known["root_cert"].encode()).subject
    own = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    for signer, end, said in (
        (authority, now + day, None),
        (authority, now - day, "expired|closed"),
        (own, now + day, "unknown|decrypt|signature|bad certificate|closed"),
    ):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank")]))
            .issuer_name(issuer)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(end)
            .sign(signer, hashes.SHA256())
        )
        chain, key = tmp_path / "client.crt", tmp_path / "client.key"
        chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.TraditionalOpenSSL
        none = serialization.NoEncryption()
        key.write_bytes(own.private_bytes(serialization.Encoding.PEM, form, none))
        found = handshake(four, key, chain)
        assert (found is None) == (said is None), found
        assert said is None or re.search(said, found), found
