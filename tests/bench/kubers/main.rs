// kube-rs + rdkafka: a watcher over any resource, which publishes what it yields: the shortest program that a Rust developer would write
// instead of the relay. It reads KUBECONFIG, BOOTSTRAP and TOPIC.
//
// It cuts managedFields, and keys by namespace/name; a delete has a null value. All else is the default of both libraries, but for zstd
// and the idempotent producer. It holds no object: after a restart it publishes all there is, and deletes of the time between are lost.
use std::{env, thread, time::Duration};

use anyhow::{Result, bail};
use futures::TryStreamExt;
use kube::{
    Client, ResourceExt,
    api::{Api, ApiResource, DynamicObject, GroupVersionKind},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use rdkafka::{
    ClientConfig,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseRecord, DefaultProducerContext, ThreadedProducer},
};

struct Publisher {
    producer: ThreadedProducer<DefaultProducerContext>,
    topic: String,
}

impl Publisher {
    fn produce(&self, object: &DynamicObject, value: Option<&[u8]>) -> Result<()> {
        let key = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
        let mut record = BaseRecord::to(&self.topic).key(&key);
        record.payload = value;
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned)) => record = returned,
                Err((error, _)) => bail!(error),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let producer = ClientConfig::new()
        .set("bootstrap.servers", env::var("BOOTSTRAP")?)
        .set("compression.type", "zstd")
        .set("enable.idempotence", "true")
        .create()?;
    let publisher = Publisher { producer, topic: env::var("TOPIC")? };
    let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let api: Api<DynamicObject> = Api::all_with(Client::try_default().await?, &pods);
    let mut changes = Box::pin(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = changes.try_next().await? {
        match event {
            Event::Apply(mut pod) | Event::InitApply(mut pod) => {
                pod.managed_fields_mut().clear();
                publisher.produce(&pod, Some(&serde_json::to_vec(&pod)?))?;
            }
            Event::Delete(pod) => publisher.produce(&pod, None)?,
            Event::Init | Event::InitDone => {}
        }
    }
    Ok(())
}
